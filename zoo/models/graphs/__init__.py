"""Models of growing graphs (Ott 2022, dissertation, chapter 5), and random processes that grade them."""
