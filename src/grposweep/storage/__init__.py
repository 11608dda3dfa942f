"""A sweep's files on disk: names, records, folders."""
