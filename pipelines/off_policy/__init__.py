"""What a policy would have earned on lists that another one served."""
