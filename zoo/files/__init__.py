"""Files and folders of results: owned by one configuration, sealed, used again only when unaltered."""
