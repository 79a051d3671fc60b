# The groups of table.h.
set(groups Group<64> Group<128> Group<256> PlanGroup)
