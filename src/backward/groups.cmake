# The groups of table.h.
set(small_groups Group<64> Group<96> Group<128> Group<192> Group<256> VarlenGroup<64> VarlenGroup<96> VarlenGroup<128>
    VarlenGroup<192> VarlenGroup<256> ListGroup PrepareGroup CombineGroup SinksGroup ClearGroup)
set(study_groups StudyGroup<64> StudyGroup<96> StudyGroup<128>)
