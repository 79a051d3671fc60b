// The forward's plan: of drawn problems, of one length and of variable ones, what the kernels are told,
// against a model of its own. Which variant serves: plan_test.cpp; how tiles are cut: tiling_test.cpp.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numbers>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "forward/plan.h"
#include "tests/support/forward_case.h"

namespace tandem::test {
namespace {

using core::ForwardProblem;
using forward::ForwardVariant;
using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
T* at(std::uintptr_t number) {
  return reinterpret_cast<T*>(number << 32);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// A tensor of which nobody else has the strides.
core::Tensor tensor(std::uintptr_t number, tandem_dtype dtype, std::int64_t b, std::int64_t s, std::int64_t h,
                    std::int64_t d) {
  const auto n = static_cast<std::int64_t>(number) * 64;
  return {at<void>(number), dtype, {b, s, h, d}, {n << 12, n << 6, n, 1}};
}

using OneOf = std::initializer_list<std::int64_t>;

struct Draw {
  Random random;

  std::int64_t of(OneOf values) { return values.begin()[random() % values.size()]; }
  bool one_in(std::uint64_t n) { return random() % n == 0; }
};

ForwardProblem uniform_problem(Draw& draw) {
  const std::int64_t b = draw.of({1, 2, 5}), hk = draw.of({1, 2, 3, 8}),
                     d = 8 * draw.of({1, 8, 9, 16, 24, 25, 32}), hq = hk * draw.of({1, 2, 4, 6, 7, 8, 128}),
                     sq = draw.of({1, 3, 64, 100, 500, 2000}), sk = draw.of({1, 5, 333, 4096});
  const std::int64_t dv = draw.one_in(3) ? std::min(d, 8 * draw.of({1, 8, 16})) : d;
  const tandem_dtype dtype = draw.one_in(2) ? TANDEM_BF16 : TANDEM_FP16;
  ForwardProblem p{};
  p.q = tensor(1, dtype, b, sq, hq, d), p.o = tensor(2, dtype, b, sq, hq, dv);
  p.k = tensor(3, dtype, b, sk, hk, d), p.v = tensor(4, dtype, b, sk, hk, dv);
  p.lse = tensor(5, TANDEM_FP32, b, sq, hq, 1);
  p.scale = 0.25f;
  if (draw.one_in(3)) p.softcap = 30;
  if (draw.one_in(2)) p.mask = core::Mask::causal();
  if (draw.one_in(4)) p.mask = {50, draw.of({0, 20})};
  return p;
}

ForwardProblem varlen_problem(Draw& draw) {
  ForwardProblem p = uniform_problem(draw);
  core::Varlen& varlen = p.varlen;
  varlen.given = true, varlen.sequences = draw.of({1, 3, 40});
  varlen.max_seqlen_q = p.q.shape[1], varlen.max_seqlen_k = p.k.shape[1];
  varlen.seqused_k = at<const std::int32_t>(10), varlen.leftpad_k = at<const std::int32_t>(11);
  varlen.batch_index = at<const std::int32_t>(12), varlen.cu_seqlens_k = at<const std::int32_t>(13);
  if (draw.one_in(2)) {
    varlen.cu_seqlens_q = at<const std::int32_t>(14);
    p.q.shape[0] = p.o.shape[0] = p.lse.shape[0] = 1;
    p.q.shape[1] = p.o.shape[1] = p.lse.shape[1] = draw.of({1, 100, 3000});
  } else {
    p.q.shape[0] = p.o.shape[0] = p.lse.shape[0] = varlen.sequences;
  }
  if (draw.one_in(2)) {
    varlen.page_table = at<const std::int32_t>(15);
    varlen.pages_per_sequence = draw.of({1, 7}), varlen.page_table_stride = 9;
    p.k.shape[1] = p.v.shape[1] = draw.of({16, 32, 64, 128, 256}), p.k.shape[0] = p.v.shape[0] = 50;
  }
  if (draw.one_in(2)) {
    const std::int64_t added = draw.of({0, 1, 5});
    varlen.k_new = tensor(16, p.q.dtype, 2, added, p.k.shape[2], p.q.shape[3]);
    varlen.v_new = tensor(17, p.q.dtype, 2, added, p.k.shape[2], p.q.shape[3]);
    varlen.cu_seqlens_k_new = at<const std::int32_t>(18);
  }
  if (draw.one_in(2)) varlen.rotary = {at<void>(19), at<void>(20), p.q.dtype, 4096, 8, true};
  if (draw.one_in(2)) p.sinks = at<const float>(21);
  if (draw.one_in(4) && p.head_dim() <= 192) p.mask.chunk = draw.of({1, 50, 1000});
  if (draw.one_in(4)) p.slopes = {at<const float>(22), draw.of({0, p.q_heads()})};
  if (draw.one_in(4) && p.head_dim() <= 192) p.tree = at<const std::uint64_t>(23);
  return p;
}

template <typename Check>
void for_each_draw(ForwardProblem (*problem_of)(Draw&), Check check) {
  for (std::uint64_t seed = 1; seed <= 500 && !testing::Test::HasFailure(); ++seed) {
    Draw draw{Random(seed)};
    const ForwardProblem p = problem_of(draw);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": batch " << p.batch() << ", " << p.q_len()
                                    << " queries, " << p.k_len() << " keys, heads " << p.q_heads() << "/"
                                    << p.kv_heads() << ", head dims " << p.head_dim() << "/"
                                    << p.value_dim());
    check(p, *forward::choose_variant(p));
  }
}

bool is_of(const core::TensorView& view, const core::Tensor& tensor) {
  return view.data == tensor.data && view.batch_stride == tensor.stride[0] &&
         view.row_stride == tensor.stride[1] && view.head_stride == tensor.stride[2];
}

void expect_options(const forward::ForwardArguments& args, const ForwardProblem& p, int pack) {
  EXPECT_TRUE(is_of(args.o, p.o) && is_of(args.lse, p.lse));
  const auto mask = p.mask.narrowed<std::int32_t>();
  EXPECT_EQ(args.mask.left, mask.left);
  EXPECT_EQ(args.mask.right, mask.right);
  EXPECT_EQ(args.q_len, p.q_len());
  EXPECT_EQ(args.k_len, p.k_len());
  EXPECT_EQ(args.value_dim, p.value_dim());
  EXPECT_EQ(args.packing.heads(), pack);
  EXPECT_EQ(args.group.value() * pack, p.q_heads() / p.kv_heads());
  EXPECT_FLOAT_EQ(args.scale_log2, (p.softcap > 0 ? p.softcap : p.scale) * std::numbers::log2e_v<float>);
  EXPECT_FLOAT_EQ(args.score_to_cap, p.softcap > 0 ? p.scale / p.softcap : 0);
  EXPECT_EQ(args.sinks, p.sinks);
  constexpr int one_chunk = 1 << 29;
  EXPECT_EQ(args.chunks.size.value(), p.mask.chunk > 0 ? p.mask.chunk : one_chunk);
  EXPECT_EQ(args.chunks.negative_past, p.mask.chunk > 0 ? 0 : one_chunk);
  EXPECT_EQ(args.slopes.data, p.slopes.data);
  EXPECT_EQ(args.slopes.stride, p.slopes.stride);
  EXPECT_FLOAT_EQ(args.slopes.to_score * (p.softcap > 0 ? p.softcap : p.scale), 1);
  EXPECT_EQ(static_cast<const void*>(args.tree), p.tree);
  for (const forward::ScaleView& scales : {args.q_scale, args.k_scale, args.v_scale})
    EXPECT_EQ(scales.data, nullptr);
}

/// Query heads that share tiles: the largest power of two that divides the group, at most 64, where that
/// saves a tenth.
int pack_of(const ForwardProblem& p, const ForwardVariant& v) {
  int heads = 1;
  while (heads < 64 && p.q_heads() / p.kv_heads() % (2 * heads) == 0) heads *= 2;
  const std::int64_t plain = p.q_heads() * ceil_div(p.q_len(), v.block_m),
                     packed = p.q_heads() / heads * ceil_div(p.q_len() * heads, v.block_m);
  return static_cast<double>(packed) <= 0.9 * static_cast<double>(plain) ? heads : 1;
}

void expect_maps(const launch::Record<forward::Family>& record, const ForwardProblem& p, int pack) {
  using Arguments = forward::ForwardArguments;
  const ForwardVariant& v = record.variant;
  const bool keyless = p.k_len() == 0 || p.k.shape[0] * p.k.shape[1] == 0;
  const auto keys = static_cast<int>(
      p.varlen.page_table == nullptr ? v.block_n : std::gcd<std::int64_t>(v.block_n, p.k.shape[1]));
  struct Expected {
    std::string name;
    const core::Tensor& tensor;
    int rows, heads;
    hw::TensorMap Arguments::*map;
    int columns = 0;
  };
  // Rows end in a box of their own, unless they fill all columns of a tile's panels.
  const bool fills = p.head_dim() == v.head_dim && p.value_dim() == v.value_dim && v.head_dim % 64 == 0 &&
                     v.value_dim % 64 == 0;
  const bool narrow = !fills && !v.is_8_bit() && v.block_parts() == 1;
  const auto columns = [](std::int64_t of) { return static_cast<int>((of + 7) / 8 * 8); };
  EXPECT_EQ(record.arguments.narrow_rows, narrow);
  if (narrow) {
    EXPECT_EQ(record.arguments.key_box_columns, columns(p.head_dim()));
    EXPECT_EQ(record.arguments.value_box_columns, columns(p.value_dim()));
  }
  std::vector<Expected> expected;
  const auto expect = [&](const Expected& whole, hw::TensorMap Arguments::*last) {
    expected.push_back(whole);
    const int behind = columns(whole.tensor.shape[3]) % 64;
    if (narrow && behind > 0)
      expected.push_back({whole.name, whole.tensor, whole.rows, whole.heads, last, behind});
  };
  expect({"q", p.q, 64, pack, &Arguments::q}, &Arguments::q_last);
  if (v.decisions.stages_output) expected.push_back({"o", p.o, 16, pack, &Arguments::o_boxes});
  if (keyless) {
    expected.push_back({"q", p.q, 64, pack, &Arguments::k});
    expected.push_back({"q", p.q, 64, pack, &Arguments::v});
  } else {
    expect({"k", p.k, keys, 1, &Arguments::k}, &Arguments::k_last);
    expect({"v", p.v, keys, 1, &Arguments::v}, &Arguments::v_last);
  }
  ASSERT_EQ(record.map_count, expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(record.maps[i].name, expected[i].name);
    EXPECT_EQ(record.maps[i].tensor.data, expected[i].tensor.data);
    EXPECT_EQ(record.maps[i].box.rows, expected[i].rows) << expected[i].name;
    EXPECT_EQ(record.maps[i].box.heads, expected[i].heads) << expected[i].name;
    EXPECT_EQ(record.maps[i].box.columns, expected[i].columns) << expected[i].name;
    EXPECT_TRUE(record.maps[i].map == expected[i].map) << expected[i].name;
  }
}

TEST(ForwardPlan, AKernelOfOneLengthIsToldWhatTheProblemSays) {
  int packed = 0, staged = 0, narrow = 0;
  for_each_draw(uniform_problem, [&](ForwardProblem p, const ForwardVariant& v) {
    const int pack = pack_of(p, v);
    const std::int64_t tiles = p.batch() * (p.q_heads() / pack) * ceil_div(p.q_len() * pack, v.block_m);
    EXPECT_EQ(forward::tile_count(p, v), tiles);
    for (const int multiprocessors : {1, 132}) {
      const std::int64_t blocks = std::min<std::int64_t>(tiles, multiprocessors * (v.block_m == 64 ? 2 : 1));
      EXPECT_EQ(forward::grid_size(p, v, multiprocessors), blocks);
      const auto record = forward::make_record(p, v, multiprocessors, nullptr);
      EXPECT_EQ(record.variant, v);
      EXPECT_EQ(record.blocks, blocks);
      expect_options(record.arguments, p, pack);
      expect_maps(record, p, pack);
    }
    EXPECT_EQ(forward::workspace_bytes(p), 0U);
    EXPECT_EQ(forward::most_listed_tiles(p, v), 0);
    EXPECT_EQ(forward::make_list_record(p, v, 132, nullptr).blocks, 0);
    p.k.shape[0] = 0;
    expect_maps(forward::make_record(p, v, 132, nullptr), p, pack);
    packed += pack > 1 ? 1 : 0, staged += v.decisions.stages_output ? 1 : 0;
    narrow += v.has_narrow_values() ? 1 : 0;
  });
  EXPECT_GT(packed, 50);
  EXPECT_GT(staged, 50);
  EXPECT_GT(narrow, 10);
}

TEST(ForwardPlan, SchedulesOfCausalTilesAreLongestFirst) {
  Draw draw{Random(1)};
  ForwardProblem p = uniform_problem(draw);
  p.q.shape[1] = p.o.shape[1] = p.lse.shape[1] = 2000, p.softcap = 0;
  for (const auto& [mask, falls] :
       {std::pair{core::Mask::causal(), true}, {core::Mask::full(), false}, {core::Mask{40, 9}, true}}) {
    p.mask = mask;
    const auto args = forward::make_arguments(p, *forward::choose_variant(p), 132);
    EXPECT_EQ(args.schedule.tile(0).m_block > 0, falls);
  }
}

/// What a problem of variable lengths needs of a workspace: the list of tiles and, where they are rotated,
/// queries behind it.
struct VarlenModel {
  const ForwardProblem& p;
  const ForwardVariant& v;
  int pack = pack_of(p, v);

  std::int64_t tile_queries() const { return v.block_m / pack; }
  std::int64_t tiles_of_head() const {
    const std::int64_t rows = p.q.shape[0] * p.q.shape[1], by_length = ceil_div(p.q_len(), tile_queries());
    return std::min(p.varlen.sequences * by_length, rows / tile_queries() + p.varlen.sequences);
  }
  std::int64_t list_bytes() const { return 4 * (4 + 12 * tiles_of_head() * (p.q_heads() / pack)); }
  std::int64_t queries_at() const { return ceil_div(list_bytes(), 256) * 256; }
  std::int64_t query_bytes() const { return 2 * p.q.shape[0] * p.q.shape[1] * p.q_heads() * p.head_dim(); }
};

void expect_varlen(const forward::VarlenArguments& args, const VarlenModel& model) {
  const ForwardProblem& p = model.p;
  EXPECT_EQ(args.cu_seqlens_q, p.varlen.cu_seqlens_q);
  EXPECT_EQ(args.cu_seqlens_k, p.varlen.cu_seqlens_k);
  EXPECT_EQ(args.seqused_k, p.varlen.seqused_k);
  EXPECT_EQ(args.page_table, p.varlen.page_table);
  EXPECT_EQ(args.page_table_stride, p.varlen.page_table_stride);
  EXPECT_EQ(args.sequences, p.varlen.sequences);
  EXPECT_EQ(args.q_rows, p.q.shape[1]);
  const bool paged = p.varlen.page_table != nullptr;
  EXPECT_EQ(args.k_rows, paged ? p.varlen.pages_per_sequence * p.k.shape[1] : p.k.shape[1]);
  EXPECT_EQ(args.max_seqlen_q, p.varlen.max_seqlen_q);
  EXPECT_EQ(args.max_seqlen_k, p.varlen.max_seqlen_k);
  EXPECT_EQ(args.pages, p.k.shape[0]);
  EXPECT_EQ(1 << args.log2_page_size, paged ? p.k.shape[1] : 1);
  EXPECT_EQ(args.box_rows, paged ? std::gcd<std::int64_t>(model.v.block_n, p.k.shape[1]) : model.v.block_n);
  EXPECT_EQ(args.split_keys, 0);
  EXPECT_EQ(args.parts_batch.value(), 1);
  EXPECT_EQ(args.packs, p.q_heads() / model.pack);
  EXPECT_EQ(args.most_tiles, model.tiles_of_head() * args.packs);
}

void expect_cache(const forward::CacheArguments& args, const ForwardProblem& p) {
  EXPECT_EQ(args.cu_seqlens_new, p.varlen.cu_seqlens_k_new);
  EXPECT_EQ(args.leftpad_k, p.varlen.leftpad_k);
  EXPECT_EQ(args.batch_index, p.varlen.batch_index);
  EXPECT_EQ(args.new_rows, p.varlen.appends() ? p.varlen.k_new.shape[1] : 0);
  EXPECT_EQ(args.entries, p.k.shape[0]);
}

TEST(ForwardPlan, KernelsOfVariableLengthsAreToldWhatTheProblemSays) {
  for_each_draw(varlen_problem, [](const ForwardProblem& p, const ForwardVariant& v) {
    const VarlenModel model{p, v};
    EXPECT_EQ(v.lengths, forward::Lengths::varlen);
    if (p.mask.chunk > 0 || p.slopes.given() || p.tree != nullptr) {
      EXPECT_EQ(v.mask, forward::MaskKind::band);
    }
    EXPECT_EQ(forward::most_listed_tiles(p, v), model.tiles_of_head());
    const std::int64_t tiles = model.tiles_of_head() * (p.q_heads() / model.pack);
    EXPECT_EQ(forward::tile_count(p, v), tiles);
    auto* workspace = at<std::int32_t>(30);
    const auto record = forward::make_record(p, v, 132, workspace);
    EXPECT_EQ(record.blocks, std::min<std::int64_t>(tiles, v.block_m == 64 ? 264 : 132));
    expect_options(record.arguments, p, model.pack);
    expect_varlen(record.arguments.varlen, model);
    EXPECT_EQ(record.arguments.varlen.tile_list, workspace);
    expect_maps(record, p, model.pack);
    const auto list = forward::make_list_record(p, v, 132, workspace);
    const std::int64_t groups = ceil_div(p.q_heads() / model.pack, 8);
    EXPECT_EQ(list.blocks, ceil_div(model.tiles_of_head() * groups, 8)) << "a warp for a tile of eight packs";
    expect_options(list.arguments.forward, p, model.pack);
    expect_varlen(list.arguments.forward.varlen, model);
    EXPECT_EQ(list.arguments.forward.varlen.tile_list, workspace);
    expect_cache(list.arguments.cache, p);
    EXPECT_EQ(list.arguments.tile_queries.value(), model.tile_queries());
    EXPECT_EQ(list.arguments.grid, record.blocks);
    EXPECT_EQ(record.arguments.varlen.list_key, forward::key_of_list(p, v));
    EXPECT_EQ(list.arguments.forward.varlen.list_key, record.arguments.varlen.list_key);
  });
}

// However many queries the sequences share, each at most the longest: the list has room for their tiles, and
// for few more.
TEST(ForwardPlan, AListHasRoomForTheTilesOfAnySequences) {
  Draw draw{Random(3)};
  for (int repeat = 0; repeat < 300; ++repeat) {
    ForwardProblem p = varlen_problem(draw);
    const ForwardVariant& v = *forward::choose_variant(p);
    const std::int64_t tile = VarlenModel{p, v}.tile_queries(), most = forward::most_listed_tiles(p, v);
    // The worst: as many sequences as possible have one query beyond whole tiles.
    std::int64_t left = p.q.shape[0] * p.q.shape[1], worst = 0;
    const std::int64_t whole = (p.q_len() - 1) / tile * tile + 1;  // the longest of that kind
    for (std::int64_t i = 0; i < p.varlen.sequences && left > 0; ++i) {
      const std::int64_t others = p.varlen.sequences - i - 1;
      const std::int64_t own = std::clamp<std::int64_t>(((left - others - 1) / tile) * tile + 1, 1, whole);
      worst += ceil_div(std::min(own, left), tile), left -= std::min(own, left);
    }
    ASSERT_LE(worst, most);
    ASSERT_LE(most, p.varlen.sequences * ceil_div(p.q_len(), tile));
    ASSERT_LE(most, worst + p.varlen.sequences) << "not far more";
  }
}

TEST(ForwardPlan, AWorkspaceHasTheListAndRotatedQueriesBehindIt) {
  int rotated = 0;
  for_each_draw(varlen_problem, [&](const ForwardProblem& p, const ForwardVariant& v) {
    const VarlenModel model{p, v};
    const bool rotates = p.varlen.rotary.cos != nullptr;
    const std::int64_t bytes = rotates ? model.queries_at() + model.query_bytes() : model.list_bytes();
    EXPECT_EQ(forward::workspace_bytes(p), static_cast<std::size_t>(bytes));
    auto* workspace = at<char>(30);
    const core::TensorList list = forward::memory_of(p, workspace, core::Role::output);
    const core::ListedTensor& last = *(list.end() - 1);
    EXPECT_STREQ(last.name, "workspace");
    EXPECT_EQ(last.role, core::Role::output);
    EXPECT_EQ(last.region.data, workspace);
    EXPECT_EQ(last.region.shape[4] * last.region.element_bytes, bytes);
    const core::Tensor q = forward::with_rotated_queries(p, v, workspace).q;
    if (!rotates) {
      EXPECT_EQ(q.data, p.q.data);
      return;
    }
    ++rotated;
    EXPECT_EQ(q.data, workspace + model.queries_at());
    EXPECT_THAT(q.shape, ElementsAre(p.q.shape[0], p.q.shape[1], p.q.shape[2], p.q.shape[3]));
    EXPECT_EQ(q.stride[2], p.head_dim());
    EXPECT_EQ(q.stride[1], p.q_heads() * q.stride[2]);
    EXPECT_EQ(q.stride[0], p.q.shape[1] * q.stride[1]);
    EXPECT_EQ(forward::with_rotated_queries(p, v, nullptr).q.data, nullptr);
  });
  EXPECT_GT(rotated, 100);
  Draw draw{Random(5)};
  const ForwardProblem uniform = uniform_problem(draw);
  for (const core::ListedTensor& t : forward::memory_of(uniform, nullptr, core::Role::output))
    EXPECT_STRNE(t.name, "workspace");
}

TEST(ForwardPlan, AppendingHasAWarpForEachPieceOfAToken) {
  int launches = 0;
  for_each_draw(varlen_problem, [&](const ForwardProblem& p, const ForwardVariant& v) {
    auto* workspace = at<char>(30);
    const auto record = forward::make_append_record(p, v, workspace);
    const bool rotates = p.varlen.rotary.cos != nullptr;
    const std::int64_t d = p.head_dim(), query_pieces = ceil_div(p.q_heads() * d, 1024),
                       new_pieces = ceil_div(2 * p.kv_heads() * d, 1024);
    const std::int64_t queries = rotates ? p.q.shape[0] * p.q.shape[1] * query_pieces : 0;
    const std::int64_t added = p.varlen.appends() ? 2 * p.varlen.k_new.shape[1] * new_pieces : 0;
    EXPECT_EQ(record.blocks, ceil_div(queries + added, 8));
    EXPECT_EQ(record.variant.operand, p.dtype() == TANDEM_BF16 ? hw::Operand::bf16 : hw::Operand::fp16);
    if (record.blocks == 0) return;
    ++launches;
    const forward::AppendArguments& args = record.arguments;
    expect_varlen(args.varlen, {p, v});
    expect_cache(args.cache, p);
    EXPECT_TRUE(is_of(args.q, p.q) && is_of(args.k_cache, p.k) && is_of(args.v_cache, p.v));
    EXPECT_EQ(args.queries.warps, queries);
    EXPECT_EQ(args.added.warps, added);
    if (queries > 0) {
      EXPECT_TRUE(is_of(args.rotated_q, forward::with_rotated_queries(p, v, workspace).q));
      EXPECT_EQ(args.queries.length.value(), p.q.shape[1]);
      EXPECT_EQ(args.queries.pieces.value(), query_pieces);
    } else {
      EXPECT_EQ(args.rotated_q.data, nullptr);
    }
    if (added > 0) {
      EXPECT_TRUE(is_of(args.k_new, p.varlen.k_new) && is_of(args.v_new, p.varlen.v_new));
      EXPECT_EQ(args.added.length.value(), p.varlen.k_new.shape[1]);
      EXPECT_EQ(args.added.pieces.value(), new_pieces);
    }
    EXPECT_EQ(args.rotary.cos, p.varlen.rotary.cos);
    EXPECT_EQ(args.rotary.sin, p.varlen.rotary.sin);
    EXPECT_EQ(args.q_heads, p.q_heads());
    EXPECT_EQ(args.kv_heads, p.kv_heads());
    EXPECT_EQ(args.row_chunks.value(), d / 8);
  });
  EXPECT_GT(launches, 200);
}

TEST(ForwardPlan, SinksChunksSlopesAndTreesOfOneLengthAreOfVariableOnesThatAreAllTheSame) {
  Draw draw{Random(7)};
  ForwardProblem p = uniform_problem(draw);
  EXPECT_FALSE(forward::for_kernels(p).varlen.given);
  p.mask.chunk = 1;
  EXPECT_TRUE(forward::for_kernels(p).varlen.given);
  p.mask.chunk = 0, p.slopes.data = at<const float>(22);
  EXPECT_TRUE(forward::for_kernels(p).varlen.given);
  p.slopes.data = nullptr, p.tree = at<const std::uint64_t>(23);
  EXPECT_TRUE(forward::for_kernels(p).varlen.given);
  p.tree = nullptr, p.sinks = at<const float>(21);
  const core::Varlen varlen = forward::for_kernels(p).varlen;
  EXPECT_TRUE(varlen.given);
  EXPECT_EQ(varlen.sequences, p.q.shape[0]);
  EXPECT_EQ(varlen.max_seqlen_q, p.q.shape[1]);
  EXPECT_EQ(varlen.max_seqlen_k, p.k.shape[1]);
  EXPECT_EQ(varlen.cu_seqlens_q, nullptr);
  p = varlen_problem(draw), p.sinks = at<const float>(21);
  EXPECT_EQ(forward::for_kernels(p).varlen.seqused_k, p.varlen.seqused_k) << "these stay as they are";
}

TEST(ForwardPlan, LimitsThatHideNothingAreNone) {
  Random random(8);
  int idle = 0;
  for (int i = 0; i < 2'000; ++i) {
    Draw draw{Random(random())};
    ForwardProblem p = i % 2 == 0 ? uniform_problem(draw) : varlen_problem(draw);
    p.tree = nullptr;
    const std::int64_t q_len = p.q_len(), k_len = p.k_len();
    if (random() % 4 != 0)
      p.mask.left = std::max<std::int64_t>(0, k_len - 3 + static_cast<int>(random() % 4));
    if (random() % 4 != 0)
      p.mask.right = std::max<std::int64_t>(0, q_len - 3 + static_cast<int>(random() % 4));
    const core::Mask mask = forward::for_kernels(p).mask;
    EXPECT_EQ(mask.chunk, p.mask.chunk);
    // Of all lengths up to those, the longest are the ones that limits hide most of.
    for (const std::int64_t query : {std::int64_t{0}, q_len / 2, q_len - 1}) {
      const core::KeyRange given = p.mask.visible_keys(query, q_len, k_len);
      const core::KeyRange known = mask.visible_keys(query, q_len, k_len);
      EXPECT_EQ(known.begin, given.begin) << q_len << " queries, " << k_len << " keys";
      EXPECT_EQ(known.end, given.end) << q_len << " queries, " << k_len << " keys";
    }
    EXPECT_EQ(mask.left == core::Mask::unlimited, p.mask.left >= k_len - 1);
    EXPECT_EQ(mask.right == core::Mask::unlimited, p.mask.right >= q_len - 1);
    idle += mask.left != p.mask.left || mask.right != p.mask.right ? 1 : 0;
  }
  EXPECT_GT(idle, 500);
}

}  // namespace
}  // namespace tandem::test
