"""Maintenance of tables: it compacts small files and deletes files that no version needs."""
