"""Files of the sets: where they are, whether they are whole, and what is in them."""
