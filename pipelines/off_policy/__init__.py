"""Off-policy evaluation: the reward of a policy on lists that another one served."""
