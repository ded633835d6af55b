"""Tables of a user's own: CSV files to numbers, and what was done to them."""
