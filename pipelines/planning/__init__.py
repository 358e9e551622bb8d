"""How much hardware a size of shop needs: memory, traffic, time and cost, before any is rented."""
