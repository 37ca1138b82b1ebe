"""Stands for torch where that is not installed: what connect_from_torch() asks of it."""
