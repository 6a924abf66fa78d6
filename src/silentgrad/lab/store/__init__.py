"""The store: the folders that runs and exports leave, the names of their files, and the typed records in them."""
