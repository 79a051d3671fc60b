// Every way to call tandem_decode wrongly: its status, the words of its message, and outputs and cache left
// alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "tests/api/mistake.h"

namespace tandem::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t huge = std::int64_t{1} << 62;

using Mistake = test::Mistake<DecodeRequest>;

class DecodeMistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(DecodeMistakes, AreNamedAndLeaveTheOutputsAndTheCacheAlone) { expect_refused(GetParam()); }

std::vector<Mistake> option_mistakes() {
  return {
      {"NoCache", [](DecodeRequest& r) { r.args.cache = nullptr; }, {"cache is NULL", "tandem_cache"}},
      {"CacheWithoutItsSize",
       [](DecodeRequest& r) { r.cache.struct_size = 0; },
       {"cache->struct_size is 0", "sizeof"}},
      {"RotaryOlderThanTheFirst",
       [](DecodeRequest& r) { r.rotary.struct_size = 44; },
       {"rotary->struct_size is 44", "sizeof"}},
      {"StudyOfALaterVersion",
       [](DecodeRequest& r) { r.study.struct_size += 8; },
       {"study->struct_size is "},
       TANDEM_UNSUPPORTED},
      {"SplitSizeNegative",
       [](DecodeRequest& r) { r.args.split_size = -64; },
       {"split_size is -64", "multiple of 64"}},
      {"SplitSizeOdd",
       [](DecodeRequest& r) { r.args.split_size = 100; },
       {"split_size is 100", "multiple of 64"}},
      {"SplitSizeTooLarge",
       [](DecodeRequest& r) { r.args.split_size = INT64_MAX - 63; },
       {"split_size is 9223372036854775744", "at most 1152921504606846976"}},
      {"Kernel",
       [](DecodeRequest& r) { store(r.study.kernel, 4); },
       {"study.kernel is 4", "TANDEM_DECODE_AUTO"}},
      {"KernelNegative", [](DecodeRequest& r) { store(r.study.kernel, -1); }, {"study.kernel is -1"}},
  };
}

std::vector<Mistake> dtype_mistakes() {
  return {
      {"DtypeOfQ", [](DecodeRequest& r) { store(r.args.q.dtype, 4); }, {"q.dtype is 4", "TANDEM_FP32"}},
      {"DtypeOfKeys",
       [](DecodeRequest& r) { r.cache.k.dtype = TANDEM_BF16; },
       {"cache.k.dtype is 1 (bf16)", "q.dtype is 3 (fp32)"}},
      {"DtypeOfValues",
       [](DecodeRequest& r) { store(r.cache.v.dtype, 9); },
       {"cache.v.dtype is 9 (unknown)"}},
      {"DtypeOfNewKeys",
       [](DecodeRequest& r) { r.args.k_new.dtype = TANDEM_FP16; },
       {"k_new.dtype is 2 (fp16)"}},
      {"DtypeOfNewValues",
       [](DecodeRequest& r) { r.args.v_new.dtype = TANDEM_FP16; },
       {"v_new.dtype is 2 (fp16)"}},
      {"DtypeOfO", [](DecodeRequest& r) { r.args.o.dtype = TANDEM_FP16; }, {"o.dtype is 2 (fp16)"}},
      {"DtypeOfLse",
       [](DecodeRequest& r) { r.args.lse.dtype = TANDEM_BF16; },
       {"lse.dtype is 1 (bf16)", "TANDEM_FP32"}},
      {"DtypeOfAngles",
       [](DecodeRequest& r) { r.rotary.dtype = TANDEM_BF16; },
       {"rotary.dtype is 1 (bf16)", "TANDEM_FP32 or q.dtype"}},
  };
}

/// An 8-bit cache, and a mistake in its scales.
Mistake of_scales(const char* name, void (*spoil)(tandem_cache_scales&), std::vector<std::string> words) {
  return {name,
          [spoil](DecodeRequest& r) {
            static float values[4096];  // as large as any of them
            const tandem_tensor shared{values, TANDEM_FP32, {1, 1, 1, 1}, {}};
            r.cache.k.dtype = r.cache.v.dtype = TANDEM_E4M3;
            r.scales.struct_size = sizeof(r.scales), r.scales.k = r.scales.v = shared;
            r.args.scales = &r.scales;
            spoil(r.scales);
          },
          std::move(words)};
}

std::vector<Mistake> scale_mistakes() {
  using Scales = tandem_cache_scales;
  return {
      {"ScalesOfAWideCache",
       [](DecodeRequest& r) { r.scales.struct_size = sizeof(r.scales), r.args.scales = &r.scales; },
       {"scales is given, but cache.k.dtype is 3 (fp32)", "8-bit"}},
      {"DtypeOfKeysAlone",
       [](DecodeRequest& r) { r.cache.k.dtype = TANDEM_E4M3; },
       {"cache.v.dtype is 3 (fp32)", "cache.k.dtype is 4 (e4m3)"}},
      {"DtypesOfEightBits",
       [](DecodeRequest& r) { r.cache.k.dtype = TANDEM_INT8, r.cache.v.dtype = TANDEM_E4M3; },
       {"cache.v.dtype is 4 (e4m3)", "cache.k.dtype is 5 (int8)"}},
      of_scales("ScalesWithoutTheirSize", [](Scales& s) { s.struct_size = 0; }, {"scales->struct_size is 0"}),
      of_scales("PerToken", [](Scales& s) { s.per_token = 2; }, {"scales.per_token is 2", "0 or 1"}),
      of_scales("Hadamard", [](Scales& s) { s.hadamard = -1; }, {"scales.hadamard is -1", "0 or 1"}),
      {"HeadDimOfHadamard",
       [](DecodeRequest& r) {
         for (tandem_tensor* t : {&r.args.q, &r.args.o, &r.cache.k, &r.cache.v, &r.args.k_new, &r.args.v_new})
           t->shape[3] = 24;
         r.rotary.dim = 16, r.cache.k.dtype = r.cache.v.dtype = TANDEM_INT8;
         r.scales.struct_size = sizeof(r.scales), r.scales.hadamard = 1, r.args.scales = &r.scales;
       },
       {"q.shape[3] (head dim) is 24", "scales.hadamard is 1", "power of two"}},
      of_scales("PerTokenWithoutScales",
                [](Scales& s) { s.per_token = 1, s.v.data = nullptr, s.k.data = nullptr; },
                {"scales.k.data is NULL", "per_token"}),
      of_scales("DtypeOfScales", [](Scales& s) { s.v.dtype = TANDEM_BF16; },
                {"scales.v.dtype is 1 (bf16)", "TANDEM_FP32"}),
      of_scales("LastOfScales", [](Scales& s) { s.k.shape[3] = 2; }, {"scales.k.shape[3] is 2", "1"}),
      of_scales("BatchOfScales", [](Scales& s) { s.k.shape[0] = 3; },
                {"scales.k.shape[0] (batch) is 3", "1 or q.shape[0], which is 2"}),
      of_scales("TokensOfScales", [](Scales& s) { s.v.shape[1] = 8; },
                {"scales.v.shape[1] is 8", "per_token"}),
      of_scales("HeadsOfScales", [](Scales& s) { s.k.shape[2] = 4; },
                {"scales.k.shape[2] (heads) is 4", "cache.k.shape[2], which is 2"}),
      of_scales("PagesOfTokensScales", [](Scales& s) { s.per_token = 1; },
                {"scales.k.shape[0] (batch) is 1", "cache.k.shape[0]"}),
  };
}

/// A second part of the queries, and a mistake in it.
Mistake of_qv(const char* name, void (*spoil)(tandem_tensor&), std::vector<std::string> words) {
  return {name,
          [spoil](DecodeRequest& r) {
            r.args.qv = r.args.q;
            r.args.qv.shape[3] = r.cache.v.shape[3];
            spoil(r.args.qv);
          },
          std::move(words)};
}

std::vector<Mistake> second_part_mistakes() {
  return {
      of_qv("BatchOfQv", [](tandem_tensor& t) { t.shape[0] = 3; }, {"qv.shape[0]", "q.shape[0]"}),
      of_qv("TokensOfQv", [](tandem_tensor& t) { t.shape[1] = 7; }, {"qv.shape[1]", "q.shape[1]"}),
      of_qv("HeadsOfQv", [](tandem_tensor& t) { t.shape[2] = 1; }, {"qv.shape[2]", "q.shape[2]"}),
      of_qv("ColumnsOfQv", [](tandem_tensor& t) { t.shape[3] += 8; }, {"qv.shape[3]", "cache.v.shape[3]"}),
      of_qv("DtypeOfQv", [](tandem_tensor& t) { t.dtype = TANDEM_FP16; }, {"qv.dtype is 2 (fp16)"}),
      of_qv("StrideOfQv", [](tandem_tensor& t) { t.stride[3] = 2; }, {"qv.stride[3]"}),
  };
}

std::vector<Mistake> head_dim_mistakes() {
  return {
      {"HeadDim",
       [](DecodeRequest& r) { r.args.q.shape[3] = 12; },
       {"q.shape[3] (head dim) is 12", "multiple of 8"}},
      {"HeadDimOfKeys",
       [](DecodeRequest& r) { r.cache.k.shape[3] = 8; },
       {"cache.k.shape[3]", "is 8", "which is 16"}},
      {"HeadDimOfValues",
       [](DecodeRequest& r) { r.cache.v.shape[3] = 8; },
       {"o.shape[3] (head dim) is 16", "cache.v.shape[3], which is 8"}},
      {"HeadDimOfValuesOdd",
       [](DecodeRequest& r) { r.cache.v.shape[3] = 12; },
       {"cache.v.shape[3] (head dim) is 12", "multiple of 8 from 8 to 512"}},
      {"HeadDimOfValuesLarge",
       [](DecodeRequest& r) { r.cache.v.shape[3] = 520; },
       {"cache.v.shape[3] (head dim) is 520", "multiple of 8 from 8 to 512"}},
      {"HeadDimLarge",
       [](DecodeRequest& r) { r.args.q.shape[3] = 584; },
       {"q.shape[3] (head dim) is 584", "multiple of 8 from 8 to 576"}},
      {"HeadDimLargeOfEightBits",
       [](DecodeRequest& r) { r.args.q.shape[3] = 264, r.cache.k.dtype = r.cache.v.dtype = TANDEM_E4M3; },
       {"q.shape[3] (head dim) is 264", "multiple of 8 from 8 to 256"}},
      {"HeadDimOfValuesOfEightBits",
       [](DecodeRequest& r) { r.cache.v.shape[3] = 8, r.cache.k.dtype = r.cache.v.dtype = TANDEM_E4M3; },
       {"cache.v.shape[3] (head dim) is 8", "q.shape[3], which is 16"}},
      {"HeadDimOfNewKeys",
       [](DecodeRequest& r) { r.args.k_new.shape[3] = 8; },
       {"k_new.shape[3] (head dim) is 8"}},
      {"HeadDimOfNewValues",
       [](DecodeRequest& r) { r.args.v_new.shape[3] = 8; },
       {"v_new.shape[3] (head dim) is 8"}},
  };
}

std::vector<Mistake> shape_mistakes() {
  return {
      {"NoQueries",
       [](DecodeRequest& r) { r.args.q.shape[1] = 0; },
       {"q.shape[1] (sequence length) is 0", "1 to 8"}},
      {"NineQueries",
       [](DecodeRequest& r) { r.args.q.shape[1] = 9; },
       {"q.shape[1] (sequence length) is 9", "1 to 8", "tandem_forward"}},
      {"PagesOfValues",
       [](DecodeRequest& r) { r.cache.v.shape[0] = 3; },
       {"cache.v.shape[0] (batch) is 3", "cache.k.shape[0]"}},
      {"PageSizeOfValues",
       [](DecodeRequest& r) { r.cache.v.shape[1] = 4; },
       {"cache.v.shape[1] (sequence length) is 4", "which is 8"}},
      {"HeadsOfValues", [](DecodeRequest& r) { r.cache.v.shape[2] = 1; }, {"cache.v.shape[2] (heads) is 1"}},
      {"PagesNegative",
       [](DecodeRequest& r) { r.cache.k.shape[0] = -1; },
       {"cache.k.shape[0]", "is -1", "0 or more"}},
      {"PagesOfNothing",
       [](DecodeRequest& r) { r.cache.k.shape[1] = r.cache.v.shape[1] = 0; },
       {"cache.k.shape[1] (page size) is 0", "1 token"}},
      {"HeadsThatDoNotDivide",
       [](DecodeRequest& r) { r.args.q.shape[2] = r.args.o.shape[2] = r.args.lse.shape[2] = 3; },
       {"q.shape[2] (heads) is 3", "not a multiple of cache.k.shape[2] (heads), which is 2"}},
      {"NoQueryHeads",
       [](DecodeRequest& r) { r.args.q.shape[2] = r.args.o.shape[2] = r.args.lse.shape[2] = 0; },
       {"q.shape[2] (heads) is 0", "less than cache.k.shape[2]"}},
      {"BatchOfNewKeys",
       [](DecodeRequest& r) { r.args.k_new.shape[0] = 3; },
       {"k_new.shape[0] (batch) is 3"}},
      {"HeadsOfNewKeys",
       [](DecodeRequest& r) { r.args.k_new.shape[2] = 4; },
       {"k_new.shape[2] (heads) is 4", "cache.k"}},
      {"BatchOfNewValues",
       [](DecodeRequest& r) { r.args.v_new.shape[0] = 1; },
       {"v_new.shape[0] (batch) is 1"}},
      {"LengthOfNewValues",
       [](DecodeRequest& r) { r.args.v_new.shape[1] = 4; },
       {"v_new.shape[1]", "is 4", "k_new"}},
      {"HeadsOfNewValues",
       [](DecodeRequest& r) { r.args.v_new.shape[2] = 4; },
       {"v_new.shape[2] (heads) is 4"}},
      {"MoreNewThanTheCapacity",
       [](DecodeRequest& r) { r.args.k_new.shape[1] = r.args.v_new.shape[1] = 49; },
       {"k_new.shape[1] (sequence length) is 49", "capacity of the cache, 48"}},
      {"LengthOfO", [](DecodeRequest& r) { r.args.o.shape[1] = 5; }, {"o.shape[1] (sequence length) is 5"}},
      {"HeadsOfLse", [](DecodeRequest& r) { r.args.lse.shape[2] = 2; }, {"lse.shape[2] (heads) is 2"}},
      {"LastOfLse",
       [](DecodeRequest& r) { r.args.lse.shape[3] = 16; },
       {"lse.shape[3] is 16", "has to be 1"}},
  };
}

std::vector<Mistake> cache_mistakes() {
  return {
      {"PageTableStride",
       [](DecodeRequest& r) { r.cache.page_table_stride = -6; },
       {"cache.page_table_stride is -6", "0 or more"}},
      {"NoPagesPerSequence",
       [](DecodeRequest& r) { r.cache.pages_per_sequence = 0; },
       {"cache.pages_per_sequence is 0", "1 slot or more"}},
      {"CapacityOfNoEntries",
       [](DecodeRequest& r) {
         r.args.rotary = nullptr;
         r.cache.page_table = nullptr;
         for (tandem_tensor* tensor : {&r.cache.k, &r.cache.v}) tensor->shape[0] = 0, tensor->shape[1] = huge;
       },
       {"cache.k.shape is [0, 4611686018427387904, 2, 16]", "63 bits"}},
      {"CapacityOverflows",
       [](DecodeRequest& r) { r.cache.pages_per_sequence = huge; },
       {"cache.pages_per_sequence is 4611686018427387904", "pages of 8 tokens"}},
      {"TooFewEntries",
       [](DecodeRequest& r) {
         r.cache.page_table = nullptr, r.cache.batch_index = nullptr;
         r.cache.k.shape[0] = r.cache.v.shape[0] = 1;
       },
       {"cache.k.shape[0] (entries) is 1", "q.shape[0] (batch), 2", "cache.batch_index"}},
      {"KeysWithoutValues",
       [](DecodeRequest& r) { r.args.v_new.data = nullptr; },
       {"v_new.data is NULL, but k_new.data is not", "or neither"}},
      {"ValuesWithoutKeys",
       [](DecodeRequest& r) { r.args.k_new.data = nullptr; },
       {"k_new.data is NULL, but v_new.data is not"}},
      {"RotaryPositions",
       [](DecodeRequest& r) { r.rotary.positions = 0; },
       {"rotary.positions is 0", "1 row"}},
      {"RotaryWithoutRowsOrMemory",
       [](DecodeRequest& r) { r.rotary.positions = 0, r.rotary.cos = r.rotary.sin = nullptr; },
       {"rotary.positions is 0", "1 row"}},
      {"RotaryPositionsTooMany",
       [](DecodeRequest& r) { r.rotary.positions = std::int64_t{1} << 31; },
       {"rotary.positions is 2147483648", "at most 2147483647"}},
      {"RotaryDimZero", [](DecodeRequest& r) { r.rotary.dim = 0; }, {"rotary.dim is 0", "multiple of 16"}},
      {"RotaryDimOdd", [](DecodeRequest& r) { r.rotary.dim = 8; }, {"rotary.dim is 8", "multiple of 16"}},
      {"RotaryDimLarge",
       [](DecodeRequest& r) { r.rotary.dim = 32; },
       {"rotary.dim is 32", "head dim, which is 16"}},
      {"RotaryOfValues",
       [](DecodeRequest& r) {
         r.cache.v = r.cache.k, r.args.v_new = r.args.k_new;
         r.cache.v.shape[3] = r.args.v_new.shape[3] = r.args.o.shape[3] = 8;
       },
       {"rotary is given", "cache.v lies in cache.k"}},
      {"ValuesInKeysThatNewOnesAreNotIn",
       [](DecodeRequest& r) {
         r.args.rotary = nullptr, r.cache.v = r.cache.k;
         r.cache.v.shape[3] = r.args.v_new.shape[3] = r.args.o.shape[3] = 8;
       },
       {"cache.v.data is 0x", "overlap those of cache.k"}},
      {"RotaryStyle",
       [](DecodeRequest& r) { r.rotary.interleaved = 2; },
       {"rotary.interleaved is 2", "0 or 1"}},
  };
}

/// An address `bytes` further.
template <typename T>
T* moved(T* address, std::ptrdiff_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(address) + static_cast<std::uintptr_t>(bytes));
}

/// Groups of sequences that share prefixes, which a test may change.
tandem_shared_prefixes& share_prefixes(DecodeRequest& r, std::int64_t groups) {
  static constexpr std::int32_t sequences[] = {0, 1, 1}, lengths[] = {3, 0, 0};
  r.prefixes = {sizeof(r.prefixes), groups, sequences, lengths};
  r.args.prefixes = &r.prefixes;
  return r.prefixes;
}

std::vector<Mistake> prefix_mistakes() {
  return {
      {"FewerThanNoGroups",
       [](DecodeRequest& r) { share_prefixes(r, -1); },
       {"prefixes.groups is -1", "0 to q.shape[0] (batch)"}},
      {"MoreGroupsThanSequences",
       [](DecodeRequest& r) { share_prefixes(r, r.args.q.shape[0] + 1); },
       {"prefixes.groups is ", "0 to q.shape[0] (batch)"}},
      {"SizeOfPrefixes",
       [](DecodeRequest& r) { share_prefixes(r, 1).struct_size = 3; },
       {"prefixes->struct_size is 3", "sizeof"}},
  };
}

std::vector<Mistake> memory_mistakes() {
  return {
      {"LastStrideOfKeys",
       [](DecodeRequest& r) { r.cache.k.stride[3] = 2; },
       {"cache.k.stride[3] (head dim) is 2"}},
      {"OffsetOverflows",
       [](DecodeRequest& r) { r.cache.v.stride[0] = huge; },
       {"cache.v.stride [", "63 bits"}},
      {"AppendToABroadcastCache",
       [](DecodeRequest& r) { r.cache.k.stride[2] = 0; },
       {"cache.k.stride is [", "distinct"}},
      {"OutputBroadcast", [](DecodeRequest& r) { r.args.o.stride[2] = 0; }, {"o.stride is [", "distinct"}},
      {"NullQ", [](DecodeRequest& r) { r.args.q.data = nullptr; }, {"q.data is NULL"}},
      {"NullKeys", [](DecodeRequest& r) { r.cache.k.data = nullptr; }, {"cache.k.data is NULL"}},
      {"NullValues", [](DecodeRequest& r) { r.cache.v.data = nullptr; }, {"cache.v.data is NULL"}},
      {"NullO", [](DecodeRequest& r) { r.args.o.data = nullptr; }, {"o.data is NULL"}},
      {"NullLengths", [](DecodeRequest& r) { r.cache.lengths = nullptr; }, {"cache.lengths is NULL"}},
      {"NullCosines",
       [](DecodeRequest& r) { r.rotary.cos = nullptr; },
       {"rotary.cos is NULL", "rotary NULL for no embedding"}},
      {"NullSines", [](DecodeRequest& r) { r.rotary.sin = nullptr; }, {"rotary.sin is NULL"}},
      {"MisalignedQ",
       [](DecodeRequest& r) { r.args.q.data = moved(r.args.q.data, 2); },
       {"q.data is 0x", "4 bytes"}},
      {"MisalignedNewKeys",
       [](DecodeRequest& r) { r.args.k_new.data = moved(r.args.k_new.data, 1); },
       {"k_new.data is 0x"}},
      {"MisalignedLengths",
       [](DecodeRequest& r) { r.cache.lengths = moved(r.cache.lengths, 2); },
       {"cache.lengths is 0x", "not aligned", "4 bytes"}},
      {"MisalignedIndex",
       [](DecodeRequest& r) { r.cache.batch_index = moved(r.cache.batch_index, 1); },
       {"cache.batch_index is 0x", "not aligned"}},
      {"MisalignedPageTable",
       [](DecodeRequest& r) { r.cache.page_table = moved(r.cache.page_table, 3); },
       {"cache.page_table is 0x", "not aligned"}},
      {"MisalignedCosines",
       [](DecodeRequest& r) { r.rotary.cos = moved(r.rotary.cos, 1); },
       {"rotary.cos is 0x", "not aligned"}},
      {"NullPrefixGroups",
       [](DecodeRequest& r) { share_prefixes(r, 1).cu_sequences = nullptr; },
       {"prefixes.cu_sequences is NULL"}},
      {"NullPrefixLengths",
       [](DecodeRequest& r) { share_prefixes(r, 1).lengths = nullptr; },
       {"prefixes.lengths is NULL"}},
      {"MisalignedPrefixLengths",
       [](DecodeRequest& r) {
         tandem_shared_prefixes& prefixes = share_prefixes(r, 1);
         prefixes.lengths = moved(prefixes.lengths, 2);
       },
       {"prefixes.lengths is 0x", "not aligned", "4 bytes"}},
      {"MisalignedSinks",
       [](DecodeRequest& r) { r.args.sinks = moved(r.args.sinks, 2); },
       {"sinks is 0x", "not aligned", "4 bytes"}},
      {"OutputIsTheSinks",
       [](DecodeRequest& r) { r.args.sinks = static_cast<const float*>(r.args.lse.data); },
       {"lse.data is 0x", "overlap those of sinks"}},
      {"InPlace", [](DecodeRequest& r) { r.args.o = r.args.q; }, {"o.data is 0x", "overlap those of q"}},
      {"OutputIsTheCache",
       [](DecodeRequest& r) { r.args.o.data = r.cache.v.data; },
       {"o.data is 0x", "overlap those of cache.v", "memory of its own"}},
      {"KeysAreValues",
       [](DecodeRequest& r) { r.cache.v.data = r.cache.k.data; },
       {"cache.v.data is 0x", "overlap those of cache.k"}},
      {"CacheIsWhatIsAppended",
       [](DecodeRequest& r) { r.args.k_new.data = r.cache.k.data; },
       {"cache.k.data is 0x", "overlap those of k_new"}},
      {"LseIsTheLengths",
       [](DecodeRequest& r) {
         static std::int32_t lengths[8192] = {};  // lse's place has nothing else in it
         r.cache.lengths = lengths + 4096;
         r.args.lse.data = lengths + 4096;
       },
       {"lse.data is 0x", "overlap those of cache.lengths (cache.lengths is 0x"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Common, DecodeMistakes, ::testing::ValuesIn(common_mistakes<DecodeRequest>()),
                         by_name);
INSTANTIATE_TEST_SUITE_P(Mask, DecodeMistakes, ::testing::ValuesIn(mask_mistakes<DecodeRequest>()), by_name);
INSTANTIATE_TEST_SUITE_P(Factor, DecodeMistakes, ::testing::ValuesIn(factor_mistakes<DecodeRequest>()),
                         by_name);
INSTANTIATE_TEST_SUITE_P(Option, DecodeMistakes, ::testing::ValuesIn(option_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Dtype, DecodeMistakes, ::testing::ValuesIn(dtype_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Scales, DecodeMistakes, ::testing::ValuesIn(scale_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(SecondPart, DecodeMistakes, ::testing::ValuesIn(second_part_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Prefixes, DecodeMistakes, ::testing::ValuesIn(prefix_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(HeadDim, DecodeMistakes, ::testing::ValuesIn(head_dim_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Shape, DecodeMistakes, ::testing::ValuesIn(shape_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Cache, DecodeMistakes, ::testing::ValuesIn(cache_mistakes()), by_name);
INSTANTIATE_TEST_SUITE_P(Memory, DecodeMistakes, ::testing::ValuesIn(memory_mistakes()), by_name);

// ---- Mistakes outside the struct

TEST(DecodeErrors, NullArguments) {
  EXPECT_EQ(tandem_decode(nullptr, nullptr, 0, nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("args is NULL; pass the address of a tandem_decode_args"));
  EXPECT_EQ(tandem_decode_plan(nullptr, nullptr, 0, nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("args is NULL"));
  for (const auto query : {tandem_decode_workspace, tandem_decode_plan_size}) {
    std::size_t bytes = 17;
    EXPECT_EQ(query(nullptr, &bytes), TANDEM_INVALID_ARGUMENT);
    EXPECT_EQ(bytes, 17u);
    DecodeRequest request;
    EXPECT_EQ(query(&request.args, nullptr), TANDEM_INVALID_ARGUMENT);
    EXPECT_THAT(tandem_last_error(), HasSubstr("bytes is NULL"));
    request.args.q.shape[3] = 7;
    EXPECT_EQ(query(&request.args, &bytes), TANDEM_INVALID_ARGUMENT);
    EXPECT_THAT(tandem_last_error(), HasSubstr("q.shape[3] (head dim) is 7"));
    EXPECT_EQ(bytes, 17u);
  }
}

TEST(DecodeErrors, Workspace) {
  DecodeRequest request;
  std::size_t needed = 0;
  ASSERT_EQ(tandem_decode_workspace(&request.args, &needed), TANDEM_OK) << tandem_last_error();
  ASSERT_GT(needed, 0u);
  std::byte* const data = request.workspace.front().bytes;
  EXPECT_EQ(tandem_decode(&request.args, data, needed - 1, nullptr), TANDEM_WORKSPACE_TOO_SMALL);
  EXPECT_THAT(tandem_last_error(), HasSubstr("workspace_bytes is " + std::to_string(needed - 1)));
  EXPECT_THAT(tandem_last_error(), HasSubstr("tandem_decode_workspace"));
  EXPECT_EQ(tandem_decode(&request.args, nullptr, needed, nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("workspace is NULL"));
  EXPECT_EQ(tandem_decode(&request.args, data + 128, needed, nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_THAT(tandem_last_error(), HasSubstr("not aligned to 256"));
  EXPECT_TRUE(request.outputs_untouched());
}

TEST(DecodeErrors, HopperOnThisMachine) {
  DecodeCase c = small_step();
  c.dtype = TANDEM_BF16, c.head_dim = 64;
  DecodeRequest request(c);
  request.args.backend = TANDEM_BACKEND_HOPPER;
  tandem_info info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(tandem_get_info(&info), TANDEM_OK);
  std::size_t bytes = 0;
  const tandem_status query = tandem_decode_workspace(&request.args, &bytes);
  if (!info.hopper_built) {
    EXPECT_EQ(query, TANDEM_UNSUPPORTED);
    EXPECT_THAT(tandem_last_error(), HasSubstr("cmake --preset hopper"));
    EXPECT_EQ(request.run(), TANDEM_UNSUPPORTED);
  } else {
    ASSERT_EQ(query, TANDEM_OK) << tandem_last_error();
    std::vector<WorkspaceBlock> workspace(bytes / sizeof(WorkspaceBlock) + 1);
    const tandem_status status = tandem_decode(&request.args, workspace.data(), bytes, nullptr);
    EXPECT_EQ(status, info.hopper_usable ? TANDEM_INVALID_ARGUMENT : TANDEM_NO_DEVICE);
    EXPECT_THAT(tandem_last_error(), HasSubstr(info.hopper_usable ? "host memory" : info.hopper_reason));
  }
  EXPECT_TRUE(request.outputs_untouched());
}

}  // namespace
}  // namespace tandem::test
