"""One element of each row, the largest or a drawn one."""
