"""Guides over several data sets: where each stands, what that says about which to use when, and a page."""
