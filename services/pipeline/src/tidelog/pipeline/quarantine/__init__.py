"""Records that couldn't be read: kept in a topic with the reason, and put back when they can be."""
