"""Types and values: what clients send and see, and what Delta stores of it."""
