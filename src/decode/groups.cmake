# The groups of table.h.
set(groups Group<64> Group<128> Group<256> Group<512> ListedGroup<64> ListedGroup<128> ListedGroup<256> EightBitGroup<64> EightBitGroup<128> EightBitGroup<256> HadamardGroup<64> HadamardGroup<128> HadamardGroup<256> Int8Group<64> Int8Group<128> Int8Group<256>)
set(small_groups SharingGroup<64> SharingGroup<128> SharingGroup<256> PairedGroup<64> PairedGroup<128> LatentGroup<576> TwoPartGroup<576> PairedLatentGroup<576> CombineGroup PlanGroup PrefixListGroup ClearGroup)
set(study_groups StudyGroup<64> StudyGroup<128> StudyGroup<256>)
