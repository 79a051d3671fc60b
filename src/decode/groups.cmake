# The groups of table.h.
set(groups Group<64> Group<128> Group<256> EightBitGroup<64> EightBitGroup<128> EightBitGroup<256> PlanGroup ClearGroup)
set(study_groups StudyGroup<64> StudyGroup<128> StudyGroup<256>)
