"""Ott 2022, dissertation, chapter 5: growing graphs."""
