# The groups of table.h.
set(groups Group)
