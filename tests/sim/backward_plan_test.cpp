// The backward's plan: of drawn problems, which rows count, what lies where in the workspace, and what each
// kernel of a call is told, against a model of its own; and what is refused, at its limit and one beyond.
#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <numbers>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "backward/plan.h"
#include "backward/sums.h"
#include "core/dtype.h"
#include "tests/sim/backward_problems.h"

namespace tandem::test {
namespace {

using namespace backward_problems;

using backward::BackwardVariant;
using core::BackwardProblem;
using core::Role;
using testing::ElementsAre;

TEST(BackwardPlan, LeavesOutRowsThatSeeNothing) {
  for_each_draw([](const BackwardProblem& p) {
    const backward::Cropped cropped = backward::crop(p);
    ASSERT_EQ(cropped.unseeing_queries, unseeing_queries(p));
    ASSERT_EQ(cropped.unseen_keys, unseen_keys(p));
    const auto expect_dropped = [](const core::Tensor& whole, const core::Tensor& rest, std::int64_t rows) {
      EXPECT_EQ(rest.shape[1], whole.shape[1] - rows);
      const auto bytes = static_cast<std::int64_t>(core::size_of(whole.dtype));
      EXPECT_EQ(rest.data, whole.data == nullptr
                               ? nullptr
                               : static_cast<char*>(whole.data) + rows * whole.stride[1] * bytes);
    };
    const BackwardProblem& c = cropped.problem;
    for (const auto tensor : {&BackwardProblem::q, &BackwardProblem::o, &BackwardProblem::lse,
                              &BackwardProblem::dout, &BackwardProblem::dlse, &BackwardProblem::dq})
      expect_dropped(p.*tensor, c.*tensor, unseeing_queries(p));
    for (const auto tensor :
         {&BackwardProblem::k, &BackwardProblem::v, &BackwardProblem::dk, &BackwardProblem::dv})
      expect_dropped(p.*tensor, c.*tensor, unseen_keys(p));
    EXPECT_EQ(cropped.empty(),
              p.batch() == 0 || unseeing_queries(p) == p.q_len() || unseen_keys(p) == p.k_len());
  });
}

/// Bytes rounded up to where the next part of a workspace may begin.
std::size_t aligned(std::int64_t bytes) { return static_cast<std::size_t>((bytes + 255) / 256 * 256); }

TEST(BackwardPlan, AWorkspaceHasStatisticsOfEachRowAndSumsOfSomeHeads) {
  for_each_draw([](const BackwardProblem& p) {
    const backward::Choice choice = backward::choose(p);
    const backward::WorkspaceLayout layout = backward::layout_of(p, choice);
    const std::int64_t heads = p.batch() * p.q_heads(), seeing = padded(p.q_len() - unseeing_queries(p)),
                       unseeing = p.dsinks == nullptr ? 0 : padded(unseeing_queries(p));
    const std::int64_t columns = (choice.keys.head_dim + 63) / 64 * 64;
    std::size_t end = 0;
    const auto next = [&end](std::size_t begin, std::int64_t bytes) {
      EXPECT_EQ(begin, end);
      end += aligned(bytes);
    };
    next(layout.lse_log2, heads * seeing * 4);
    next(layout.delta, heads * seeing * 4);
    if (choice.adds_dq() && layout.counter_count > 0) {
      const std::int64_t parts = layout.counter_count - 1,
                         parts_of_group = p.group() / choice.splits * seeing / 64 * columns / 64;
      EXPECT_EQ(parts % parts_of_group, 0);
      EXPECT_THAT(parts / parts_of_group,
                  testing::AllOf(testing::Ge(1), testing::Le(p.batch() * p.kv_heads() * choice.splits)));
      next(layout.dq_sums, parts * 64 * 64 * 4);
      next(layout.counters, layout.counter_count * 4);
    }
    const std::int64_t keys = p.k_len() - unseen_keys(p),
                       kept = choice.splits == 1 ? 0
                                                 : p.batch() * p.kv_heads() * choice.splits *
                                                       ((keys + 63) / 64 * 64) * choice.keys.head_dim;
    next(layout.kept_dk, kept * 4);
    next(layout.kept_dv, kept * 4);
    next(layout.unseeing_lse_log2, heads * unseeing * 4);
    next(layout.unseeing_delta, heads * unseeing * 4);
    EXPECT_EQ(layout.end, end);
    EXPECT_EQ(backward::workspace_bytes(p), end);
  });
}

TEST(BackwardPlan, KernelsAreOfTheLeastHeadDimAndAddDqUpTo128) {
  static constexpr int built[] = {64, 96, 128, 192, 256};
  for_each_draw([](const BackwardProblem& p) {
    const backward::Choice choice = backward::choose(p);
    ASSERT_TRUE(choice.found);
    const int head_dim = *std::lower_bound(built, std::end(built), p.head_dim());
    const auto operand = p.dtype() == TANDEM_BF16 ? hw::Operand::bf16 : hw::Operand::fp16;
    for (const BackwardVariant& v : {choice.keys, choice.queries}) {
      EXPECT_EQ(v.head_dim, head_dim);
      EXPECT_EQ(v.operand, operand);
      EXPECT_EQ(v.softcap, p.softcap > 0);
    }
    const bool wide = head_dim > 128;
    EXPECT_EQ(choice.queries.kernel, wide ? backward::Kernel::queries : backward::Kernel::keys_pipelined);
    EXPECT_EQ(choice.keys.kernel, wide ? backward::Kernel::keys_in_roles : backward::Kernel::keys_pipelined);
    EXPECT_EQ(choice.adds_dq(), !wide);
  });
  BackwardProblem p = problem_of({1, 3, 5, 1, 1, 264});
  EXPECT_FALSE(backward::choose(p).found);
  EXPECT_THAT(std::string(backward::supported(p).message()),
              testing::HasSubstr("is built for dtype bf16 with head dim 264;"));
}

bool is_of(const core::TensorView& view, const core::Tensor& tensor) {
  return view.data == tensor.data && view.batch_stride == tensor.stride[0] &&
         view.row_stride == tensor.stride[1] && view.head_stride == tensor.stride[2];
}

std::vector<std::string> memory(const core::TensorList& list) {
  static constexpr const char* roles[] = {"input", "output", "updated"};
  std::vector<std::string> all;
  for (const core::ListedTensor& t : list)
    all.push_back(t.address_name() + " " + roles[static_cast<int>(t.role)]);
  return all;
}

class CallChecker {
 public:
  explicit CallChecker(const BackwardProblem& p)
      : whole_(p),
        cropped_(backward::crop(p)),
        choice_(backward::choose(p)),
        layout_(backward::layout_of(p, choice_)) {}

  std::vector<std::string> names;

  core::Status operator()(const backward::Step<backward::PrepareFamily>& step) {
    const bool first = names.empty() && !cropped_.empty();
    names.push_back(first ? "prepare" : "prepare unseeing");
    const backward::PrepareArguments& args = step.record.arguments;
    BackwardProblem p = first ? cropped_.problem : whole_;
    const std::int64_t rows = first ? p.q_len() : cropped_.unseeing_queries;
    expect_rows_variant(step.record.variant);
    EXPECT_EQ(step.record.blocks, p.batch() * p.q_heads() * padded(rows) / 64);
    EXPECT_EQ(args.row_blocks.value(), std::max<std::int64_t>(1, padded(rows) / 64));
    EXPECT_EQ(args.q_heads.value(), p.q_heads());
    EXPECT_TRUE(is_of(args.o, p.o) && is_of(args.dout, p.dout) && is_of(args.lse, p.lse) &&
                is_of(args.dlse, p.dlse));
    expect_statistics(args.statistics, first);
    EXPECT_EQ(args.counter_count, first ? layout_.counter_count : 0);
    EXPECT_EQ(reinterpret_cast<char*>(args.counters), workspace_ + layout_.counters);
    expect_extent(args.extent, rows, p.k_len());
    std::vector<std::string> expected = {"o.data input", "dout.data input", "lse.data input"};
    if (p.dlse.data != nullptr) expected.push_back("dlse.data input");
    expected.push_back(first ? "workspace output" : "workspace updated");
    EXPECT_EQ(memory(step.memory), expected);
    return {};
  }

  core::Status operator()(const backward::Step<backward::Family>& step) {
    const BackwardVariant& v = step.record.variant;
    const bool keys = v.is_of_keys();
    names.push_back(keys ? "keys" : "queries");
    EXPECT_EQ(v, keys ? choice_.keys : choice_.queries);
    const BackwardProblem& p = cropped_.problem;
    const backward::BackwardArguments& args = step.record.arguments;
    EXPECT_TRUE(is_of(args.dq, p.dq) && is_of(args.dk.to, p.dk) && is_of(args.dv.to, p.dv));
    expect_statistics(args.statistics, true);
    expect_extent(args.extent, p.q_len(), p.k_len());
    const int splits = keys ? choice_.splits : 1;
    EXPECT_EQ(args.splits.count.value(), splits);
    EXPECT_EQ(args.splits.heads, splits * p.kv_heads());
    EXPECT_EQ(args.group.value(), p.q_heads() / p.kv_heads() / splits);
    expect_kept(args.dk, args.dv);
    EXPECT_EQ(args.scale, p.scale);
    EXPECT_FLOAT_EQ(args.scale_log2, (p.softcap > 0 ? p.softcap : p.scale) * std::numbers::log2e_v<float>);
    EXPECT_FLOAT_EQ(args.score_to_cap, p.softcap > 0 ? p.scale / p.softcap : 0);
    expect_tiles(step, keys ? v.block_n : v.block_m, keys ? p.k_len() : p.q_len(),
                 keys ? p.kv_heads() * splits : p.q_heads());
    expect_maps(step);
    std::vector<std::string> expected = {"q.data input", "k.data input", "v.data input", "dout.data input"};
    expected.push_back(keys && (choice_.adds_dq() || splits > 1) ? "workspace updated" : "workspace input");
    if (keys && splits == 1) expected.insert(expected.end(), {"dk.data output", "dv.data output"});
    if (!keys || choice_.adds_dq()) expected.push_back("dq.data output");
    EXPECT_EQ(memory(step.memory), expected);
    return {};
  }

  core::Status operator()(const backward::Step<backward::CombineFamily>& step) {
    names.push_back("combine");
    const BackwardProblem& p = cropped_.problem;
    const backward::CombineArguments& args = step.record.arguments;
    expect_rows_variant(step.record.variant);
    const std::int64_t heads = p.batch() * p.kv_heads(), blocks = (p.k_len() + 63) / 64;
    EXPECT_EQ(step.record.blocks, 2 * heads * blocks * (choice_.keys.head_dim / 32));
    EXPECT_TRUE(is_of(args.dk.to, p.dk) && is_of(args.dv.to, p.dv));
    expect_kept(args.dk, args.dv);
    EXPECT_EQ(args.splits.count.value(), choice_.splits);
    EXPECT_EQ(args.scale, p.scale);
    EXPECT_EQ(args.key_blocks.value(), blocks);
    EXPECT_EQ(args.heads.value(), p.kv_heads());
    EXPECT_EQ(args.all_heads.value(), heads);
    EXPECT_EQ(args.k_len, p.k_len());
    EXPECT_EQ(args.head_dim, p.head_dim());
    EXPECT_THAT(memory(step.memory), ElementsAre("workspace input", "dk.data output", "dv.data output"));
    return {};
  }

  core::Status operator()(const backward::Step<backward::SinksFamily>& step) {
    names.push_back("sinks");
    const backward::SinksArguments& args = step.record.arguments;
    EXPECT_EQ(step.record.blocks, whole_.q_heads());
    expect_statistics(args.seeing, true);
    expect_statistics(args.unseeing, false);
    EXPECT_EQ(args.seeing_rows, padded(cropped_.problem.q_len()));
    EXPECT_EQ(args.unseeing_rows, padded(cropped_.unseeing_queries));
    EXPECT_EQ(args.batch, whole_.batch());
    EXPECT_EQ(args.q_heads, whole_.q_heads());
    EXPECT_EQ(args.sinks, whole_.sinks);
    EXPECT_EQ(args.dsinks, whole_.dsinks);
    EXPECT_THAT(memory(step.memory), ElementsAre("workspace input", "sinks input", "dsinks output"));
    for (const core::ListedTensor& t : step.memory) {
      if (t.region.element_bytes == 4) {
        EXPECT_EQ(t.region.shape[4], whole_.q_heads());
      } else {
        EXPECT_EQ(t.region.shape[4], static_cast<std::int64_t>(layout_.end));
        EXPECT_EQ(t.region.data, workspace_);
      }
    }
    return {};
  }

  core::Status operator()(const backward::Step<backward::ClearFamily>& step) {
    const backward::ClearArguments& args = step.record.arguments;
    const core::Tensor& tensor = args.tensor.data == whole_.dq.data   ? whole_.dq
                                 : args.tensor.data == whole_.dk.data ? whole_.dk
                                                                      : whole_.dv;
    const bool queries = &tensor == &whole_.dq;
    const std::string name = queries ? "dq" : &tensor == &whole_.dk ? "dk" : "dv";
    names.push_back("clear " + name);
    const std::int64_t rows = queries ? cropped_.unseeing_queries : cropped_.unseen_keys;
    EXPECT_TRUE(is_of(args.tensor, tensor));
    EXPECT_EQ(args.heads.value(), tensor.shape[2]);
    EXPECT_EQ(args.rows.value(), rows);
    EXPECT_EQ(args.count, rows * tensor.shape[0] * tensor.shape[2]);
    EXPECT_EQ(args.head_dim, tensor.shape[3]);
    EXPECT_EQ(step.record.blocks, (args.count + 3) / 4) << "a warp for each row";
    EXPECT_THAT(memory(step.memory), ElementsAre(name + ".data updated"));
    return {};
  }

  char* workspace() const { return workspace_; }
  const backward::Choice& choice() const { return choice_; }

  std::vector<std::string> expected_names() const {
    std::vector<std::string> all;
    const bool any = whole_.batch() > 0;
    const std::int64_t hidden = any ? cropped_.unseeing_queries : 0, unseen = any ? cropped_.unseen_keys : 0;
    if (!cropped_.empty()) {
      all = {"prepare", "keys"};
      if (!choice_.adds_dq()) all.emplace_back("queries");
      if (choice_.splits > 1) all.emplace_back("combine");
    }
    if (whole_.dsinks != nullptr) {
      if (hidden > 0) all.emplace_back("prepare unseeing");
      all.emplace_back("sinks");
    }
    if (hidden > 0) all.emplace_back("clear dq");
    if (unseen > 0) all.insert(all.end(), {"clear dk", "clear dv"});
    return all;
  }

 private:
  void expect_kept(const backward::GradientOutput& dk, const backward::GradientOutput& dv) const {
    const auto at = [this](std::size_t offset) {
      return choice_.splits == 1 ? nullptr : reinterpret_cast<float*>(workspace_ + offset);
    };
    EXPECT_EQ(dk.kept, at(layout_.kept_dk));
    EXPECT_EQ(dv.kept, at(layout_.kept_dv));
  }
  void expect_rows_variant(const backward::RowsVariant& v) const {
    EXPECT_EQ(v.operand, choice_.keys.operand);
    EXPECT_EQ(v.head_dim, choice_.keys.head_dim);
  }
  void expect_statistics(const backward::Statistics& s, bool seeing) const {
    EXPECT_EQ(reinterpret_cast<char*>(s.lse_log2),
              workspace_ + (seeing ? layout_.lse_log2 : layout_.unseeing_lse_log2));
    EXPECT_EQ(reinterpret_cast<char*>(s.delta),
              workspace_ + (seeing ? layout_.delta : layout_.unseeing_delta));
  }
  void expect_extent(const backward::Extent& e, std::int64_t q_len, std::int64_t k_len) const {
    EXPECT_EQ(e.q_len, q_len);
    EXPECT_EQ(e.k_len, k_len);
    EXPECT_EQ(e.q_heads, whole_.q_heads());
    EXPECT_EQ(e.head_dim, whole_.head_dim());
    EXPECT_EQ(e.padded_q_len, padded(q_len));
    const auto mask = whole_.mask.narrowed<std::int32_t>();
    EXPECT_EQ(e.mask.left, mask.left);
    EXPECT_EQ(e.mask.right, mask.right);
  }
  void expect_tiles(const backward::Step<backward::Family>& step, std::int64_t rows, std::int64_t length,
                    std::int64_t heads) const {
    const backward::BackwardArguments& args = step.record.arguments;
    const bool of_keys = step.record.variant.is_of_keys();
    const int positions = of_keys ? args.order.positions() : args.schedule.positions();
    const int waits_for_keys = of_keys ? 0 : 1;  // a block of the kernel of queries
    EXPECT_EQ(step.record.blocks,
              std::min(positions, step.record.variant.adds_dq() ? sm_count : positions) + waits_for_keys);
    std::set<std::tuple<int, int, int>> found;
    for (int i = 0; i < positions; ++i) {
      const core::Tile tile = of_keys ? args.order.tile(i) : args.schedule.tile(i);
      if (!tile.exists()) continue;
      EXPECT_TRUE(found.insert({tile.batch, tile.head, tile.m_block}).second);
      EXPECT_LT(tile.m_block * rows, length);
      EXPECT_LT(tile.head, heads);
      EXPECT_LT(tile.batch, whole_.batch());
    }
    EXPECT_EQ(static_cast<std::int64_t>(found.size()), whole_.batch() * heads * ((length + rows - 1) / rows));
  }
  void expect_maps(const backward::Step<backward::Family>& step) const {
    using Arguments = backward::BackwardArguments;
    const BackwardVariant& v = step.record.variant;
    const BackwardProblem& p = cropped_.problem;
    const int of_queries = v.is_of_keys() ? v.block_m : 64, of_keys = v.is_of_keys() ? 64 : v.block_n;
    struct Expected {
      std::string name;
      const core::Tensor& tensor;
      int rows;
      hw::TensorMap Arguments::*map;
    };
    const std::vector<Expected> all = {{"q", p.q, of_queries, &Arguments::q},
                                       {"dout", p.dout, of_queries, &Arguments::dout},
                                       {"k", p.k, of_keys, &Arguments::k},
                                       {"v", p.v, of_keys, &Arguments::v}};
    ASSERT_EQ(step.record.map_count, all.size() + (choice_.adds_dq() ? 2 : 0));
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& map = step.record.maps[i];
      EXPECT_EQ(map.name, all[i].name);
      EXPECT_EQ(map.tensor.data, all[i].tensor.data);
      EXPECT_EQ(map.tensor.shape[1], all[i].tensor.shape[1]);
      EXPECT_EQ(map.box.rows, all[i].rows);
      EXPECT_EQ(map.box.heads, 1);
      EXPECT_TRUE(map.map == all[i].map) << map.name;
    }
    if (!choice_.adds_dq()) return;
    const auto& sums = step.record.maps[4];
    EXPECT_EQ(sums.tensor.data, workspace_ + layout_.dq_sums);
    EXPECT_TRUE(sums.map == &Arguments::dq_sums);
    const std::int64_t parts = layout_.counter_count - 1;
    EXPECT_THAT(sums.tensor.shape, ElementsAre(1, parts * 64 * 64 / 32, 1, 32));
    EXPECT_TRUE(sums.tensor.dtype == TANDEM_FP32 && sums.tensor.stride[1] == 32 &&
                sums.box.rows == backward::part_box_rows);
    const auto& rows = step.record.maps[5];
    EXPECT_TRUE(rows.tensor.data == p.dq.data && rows.map == &Arguments::dq_rows && rows.box.rows == 64);
    const backward::DqRing& ring = step.record.arguments.ring;
    EXPECT_EQ(reinterpret_cast<char*>(ring.sums), workspace_ + layout_.dq_sums);
    EXPECT_EQ(reinterpret_cast<char*>(ring.visits - 1), workspace_ + layout_.counters);
    EXPECT_EQ(ring.next_position, ring.visits - 1);
    EXPECT_EQ(
        ring.heads.value() * p.group() / choice_.splits * (padded(p.q_len()) / 64) * ((v.head_dim + 63) / 64),
        parts);
  }

  BackwardProblem whole_;
  backward::Cropped cropped_;
  backward::Choice choice_;
  backward::WorkspaceLayout layout_;
  char* workspace_ = at(20);
  static constexpr int sm_count = 132;
};

TEST(BackwardPlan, EachKernelOfACallIsToldWhatTheProblemSays) {
  std::map<std::string, int> seen;
  for_each_draw([&seen](const BackwardProblem& p) {
    CallChecker checker(p);
    const backward::Call call(p, checker.choice(), 132, checker.workspace());
    const auto result =
        call.for_each_step<core::Status>([&checker](const auto& step) { return checker(step); });
    EXPECT_TRUE(result.ok());
    EXPECT_EQ(checker.names, checker.expected_names());
    for (const std::string& name : checker.names) ++seen[name];
  });
  EXPECT_EQ(seen.size(), 9U) << testing::PrintToString(seen);
}

TEST(BackwardPlan, AStepThatFailsIsTheLast) {
  const BackwardProblem p = problem_of({1, 200, 300, 1, 1, 64});
  int steps = 0;
  const backward::Call call(p, backward::choose(p), 132, at(20));
  const auto result = call.for_each_step<core::Status>([&steps](const auto&) {
    return ++steps == 2 ? core::Status{TANDEM_UNSUPPORTED, "no"} : core::Status{};
  });
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(std::string(result.message()), "no");
}

TEST(BackwardPlan, TheMemoryOfACallEndsWithItsWorkspace) {
  const BackwardProblem p = problem_of({2, 200, 300, 4, 2, 64});
  const core::TensorList list = backward::memory_of(p, backward::choose(p), at(20));
  std::vector<std::string> expected = memory(tensors_of(p));
  expected.emplace_back("workspace output");
  EXPECT_EQ(memory(list), expected);
  const core::Region& region = (list.end() - 1)->region;
  EXPECT_EQ(region.data, at(20));
  EXPECT_EQ(region.shape[3] * region.shape[4] * region.element_bytes,
            static_cast<std::int64_t>(backward::workspace_bytes(p)));
}

TEST(BackwardPlan, TakesFewerRowsThan2To28) {
  const auto is_taken = [](std::int64_t heads, std::int64_t q_len, std::int64_t k_len) {
    BackwardProblem p = problem_of({1, 1, 1, 1, 1, 64});
    for (core::Tensor* t : {&p.q, &p.o, &p.dout, &p.dq, &p.lse, &p.dlse}) t->shape[1] = q_len;
    for (core::Tensor* t : {&p.k, &p.v, &p.dk, &p.dv}) t->shape[1] = k_len;
    for (core::Tensor* t : {&p.q, &p.o, &p.dout, &p.dq, &p.lse, &p.dlse, &p.k, &p.v, &p.dk, &p.dv}) {
      t->shape[2] = heads;
      t->stride[0] = 0, t->stride[1] = 64, t->stride[2] = 64;
    }
    const core::Status status = backward::supported(p);
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("exceeds 2^28 rows"));
    }
    return status.ok();
  };
  constexpr std::int64_t most = (std::int64_t{1} << 28) - 128;
  EXPECT_TRUE(is_taken(1, most - 1, 5));
  EXPECT_FALSE(is_taken(1, most, 5));
  EXPECT_TRUE(is_taken(1, 5, most - 1));
  EXPECT_FALSE(is_taken(1, 5, most));
  constexpr std::int64_t of_four = (std::int64_t{1} << 26) - 128;
  EXPECT_TRUE(is_taken(4, of_four - 1, of_four - 1));
  EXPECT_FALSE(is_taken(4, of_four, 5));
}

TEST(BackwardPlan, KernelsForStudyComeWithWhatTheyLack) {
  for (const BackwardVariant& v : backward::all_variants()) {
    const backward::Choice choice = backward::choice_with(v);
    EXPECT_TRUE(choice.found);
    EXPECT_EQ(v.is_of_keys() ? choice.keys : choice.queries, v);
    EXPECT_TRUE(choice.keys.is_of_keys());
    EXPECT_EQ(choice.queries.is_of_keys(), choice.adds_dq());
    for (const BackwardVariant& other : {choice.keys, choice.queries}) {
      EXPECT_EQ(other.operand, v.operand);
      EXPECT_EQ(other.head_dim, v.head_dim);
      EXPECT_EQ(other.softcap, v.softcap);
    }
    if (!v.is_of_keys()) {
      EXPECT_FALSE(choice.adds_dq()) << "or it would not run";
    }
  }
}

}  // namespace
}  // namespace tandem::test
