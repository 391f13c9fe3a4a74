"""What the documentation shows is run, and what it says is compared with the code."""
