// tandem sim: a Hopper kernel on the software Hopper.
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "apps/sim/forward_sim.h"
#include "cases.h"
#include "forward/plan.h"
#include "hw/sim/trace.h"
#include "options.h"
#include "verify.h"

namespace tandem::cli {
namespace {

struct SimOptions {
  std::int64_t batch = 1, q_heads = 2, kv_heads = 1, q_len = 200, k_len = 300, head_dim = 128;
  std::string dtype = "bf16", mask = "full", policy = "random", timeline;
  StudyOptions study;
  float softcap = 0;
  std::uint64_t seed = 1;
  int runs = 1, multiprocessors = 2;
  bool list_variants = false;
};

HostTensor random_tensor(const SimOptions& options, std::int64_t length, std::int64_t heads,
                         std::mt19937_64& random) {
  const Shape shape{options.batch, length, heads, options.head_dim};
  std::vector<float> values(static_cast<std::size_t>(count_of(shape)));
  std::normal_distribution<float> normal;
  for (float& x : values) x = normal(random);
  return HostTensor::from_dense(parse_dtype(options.dtype), shape, Layout::bshd(), values);
}

Call make_call(const SimOptions& options, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Call call;
  call.q = random_tensor(options, options.q_len, options.q_heads, random);
  call.k = random_tensor(options, options.k_len, options.kv_heads, random);
  call.v = random_tensor(options, options.k_len, options.kv_heads, random);
  call.mask = parse_mask(options.mask);
  call.softcap = options.softcap;
  return call;
}

core::Mask mask_of(const tandem_mask& mask) {
  const auto side = [](std::int64_t keys) { return keys < 0 ? core::Mask::unlimited : keys; };
  if (mask.kind == TANDEM_MASK_FULL) return core::Mask::full();
  if (mask.kind == TANDEM_MASK_CAUSAL) return core::Mask::causal();
  return {side(mask.window_left), side(mask.window_right)};
}

core::ForwardProblem problem_of(Call& call, Output& output, const StudyOptions& study) {
  const auto view = [](HostTensor& tensor) { return tensor.view(tensor.storage.data()); };
  const float scale = call.scale > 0 ? call.scale : 1.f / std::sqrt(static_cast<float>(call.q.shape[3]));
  return {.q = view(call.q),
          .k = view(call.k),
          .v = view(call.v),
          .o = view(output.o),
          .lse = view(output.lse),
          .mask = mask_of(call.mask),
          .scale = scale,
          .softcap = call.softcap,
          .overlap = study.c_study().overlap,
          .turn = study.c_study().turn};
}

/// Chrome's trace event format; chrome://tracing and Perfetto show it.
void write_timeline(const hw::sim::Trace& trace, const std::string& path) {
  nlohmann::json events = nlohmann::json::array();
  std::map<std::string, int> rows;
  for (const hw::sim::Trace::Span& span : trace.spans()) {
    const int row = rows.emplace(span.row, static_cast<int>(rows.size())).first->second;
    events.push_back({{"name", span.what},
                      {"ph", "X"},
                      {"ts", span.begin},
                      {"dur", span.end - span.begin},
                      {"pid", 0},
                      {"tid", row}});
  }
  for (const auto& [name, row] : rows) {
    events.push_back(
        {{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", row}, {"args", {{"name", name}}}});
  }
  std::ofstream file(path);
  file << nlohmann::json{{"traceEvents", events}} << '\n';
  if (!file) throw Failure(Exit::other, "can't write the timeline to " + path);
}

std::string replay(const SimOptions& o, std::uint64_t seed) {
  const auto number = [](std::int64_t n) { return " " + std::to_string(n); };
  return "tandem sim --batch" + number(o.batch) + " --heads" + number(o.q_heads) + " --kv-heads" +
         number(o.kv_heads) + " --seqlen" + number(o.q_len) + " --seqlen-k" + number(o.k_len) +
         " --head-dim" + number(o.head_dim) + " --dtype " + o.dtype + " --mask " + o.mask + " --softcap " +
         std::to_string(o.softcap) + " --blocks" + number(o.multiprocessors) + o.study.arguments() +
         " --policy " + o.policy + " --seed " + std::to_string(seed);
}

hw::sim::Policy policy_of(const std::string& text) {
  using hw::sim::Policy;
  return text == "eager" ? Policy::eager : text == "late" ? Policy::late : Policy::random;
}

bool run_once(const SimOptions& options, std::uint64_t seed) {
  Call call = make_call(options, seed);
  Output output{
      HostTensor::poisoned(call.q.dtype, call.q.shape, Layout::bshd()),
      HostTensor::poisoned(TANDEM_FP32, {options.batch, options.q_len, options.q_heads, 1}, Layout::bshd())};
  const core::ForwardProblem problem = problem_of(call, output, options.study);
  const forward::ForwardVariant* chosen = forward::choose_variant(problem);
  if (chosen == nullptr) throw Failure(Exit::unavailable, forward::no_variant(problem).message());
  const forward::ForwardVariant& variant = *chosen;
  hw::sim::Trace trace;
  sim::Machine machine;
  machine.multiprocessors = options.multiprocessors;
  machine.policy = policy_of(options.policy);
  machine.seed = seed;
  machine.replay = replay(options, seed);
  machine.trace = options.timeline.empty() ? nullptr : &trace;
  const hw::sim::Report report = sim::simulate_forward(problem, variant, machine);
  if (!options.timeline.empty()) write_timeline(trace, options.timeline);
  std::cout << sim::name_of(variant) << ", " << options.policy << ", seed " << seed << ": ";
  if (!report.ok()) {
    std::cout << "FAULT\n" << report.text() << std::flush;
    return false;
  }
  const Verdict verdict = verify(call, output);
  std::cout << report.statistics.copies << " copies, " << report.statistics.products << " WGMMAs, no fault; "
            << (verdict.complaint.empty() ? "equals the oracle"
                                          : verdict.complaint + "\n  replay: " + machine.replay)
            << std::endl;
  return verdict.complaint.empty();
}

const char* name_of(forward::Overlap overlap) {
  if (overlap == forward::Overlap::serial) return "serial";
  return overlap == forward::Overlap::two_stage ? "two-stage" : "three-stage";
}

const char* name_of(hw::Operand operand) {
  static constexpr const char* names[] = {"bf16", "fp16", "e4m3", "int8"};
  return names[static_cast<int>(operand)];
}

/// What follows from a variant, in columns.
std::string decisions_text(const forward::ForwardVariant& v) {
  const forward::Decisions& d = v.decisions;
  const bool varlen = v.lengths == forward::Lengths::varlen;
  const bool last_first = d.direction == core::Direction::last_key_first;
  static constexpr const char* values[] = {",rows", ",rows_transposed", ",columns"};
  std::string text = std::string(varlen ? "varlen," : "uniform,") + name_of(v.output) +
                     values[static_cast<int>(v.values)] + (v.value_terms == 2 ? "_of_two_terms" : "") + ',' +
                     std::to_string(v.value_dim) + (v.block_sparse ? ",1" : ",0") +
                     (v.fp16_scores ? ",1" : ",0") + (d.stages_output ? ",1" : ",0") +
                     (d.loops_apart ? ",1," : ",0,") + (last_first ? "last_key_first" : "first_key_first");
  for (const bool decision : {d.edge_before, d.edge_after, d.maxima_as_integers, d.begins_early,
                              d.queries_kept_longer, d.tiles_stand_apart})
    text += decision ? ",1" : ",0";
  return text;
}

/// Every compiled variant as CSV; `index` is its place among the kernels of its head dim and purpose, which
/// the names of the chip's kernels carry.
void print_variants(std::ostream& out) {
  out << "head_dim,purpose,index,dtype,mask,softcap,overlap,turn,block_m,block_n,kv_stages,"
         "lengths,output,values,value_dim,block_sparse,fp16_scores,stages_output,loops_apart,direction,"
         "edge_before,edge_after,maxima_as_integers,begins_early,queries_kept_longer,tiles_stand_apart\n";
  forward::for_each_built([&out]<int head_dim, forward::Purpose purpose>() {
    int index = 0;
    for (const forward::ForwardVariant& v : forward::built<head_dim, purpose>()) {
      out << head_dim << ',' << static_cast<int>(purpose) << ',' << index++ << ',' << name_of(v.operand)
          << ',' << (v.mask == forward::MaskKind::prefix ? "prefix," : "band,") << v.softcap << ','
          << name_of(v.overlap) << ',' << (v.turn == forward::TurnPolicy::free ? "free," : "pingpong,")
          << v.block_m << ',' << v.block_n << ',' << v.kv_stages << ',' << decisions_text(v) << '\n';
    }
  });
}

Exit run_sim(const SimOptions& options) {
  if (options.list_variants) {
    print_variants(std::cout);
    return Exit::ok;
  }
  int failed = 0;
  for (int i = 0; i < options.runs; ++i)
    failed += !run_once(options, options.seed + static_cast<std::uint64_t>(i));
  return failed == 0 ? Exit::ok : Exit::check_failed;
}

void add_shape_options(CLI::App& command, SimOptions& options) {
  const auto size = CLI::Range(std::int64_t{0}, std::int64_t{1} << 20);
  command.add_option("--batch", options.batch, "Batch")->check(size)->capture_default_str();
  command.add_option("--heads", options.q_heads, "Query heads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--kv-heads", options.kv_heads, "Key/value heads; they divide the query heads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--seqlen", options.q_len, "Queries")->check(size)->capture_default_str();
  command.add_option("--seqlen-k", options.k_len, "Keys")->check(size)->capture_default_str();
  command.add_option("--head-dim", options.head_dim, "Head dim, a multiple of 8")
      ->check(CLI::Range(8, 512))
      ->capture_default_str();
  command.add_option("--dtype", options.dtype, "Element type")
      ->check(CLI::IsMember({"bf16", "fp16"}))
      ->capture_default_str();
  command.add_option("--mask", options.mask, "Mask")
      ->check(mask_validator())
      ->type_name("MASK")
      ->capture_default_str();
  command.add_option("--softcap", options.softcap, "Cap of the scores; 0: off")
      ->check(number_from_zero())
      ->type_name("NUMBER")
      ->capture_default_str();
}

}  // namespace

void add_sim(CLI::App& app, Exit& result) {
  CLI::App* command =
      app.add_subcommand("sim", "Run a Hopper kernel on the software Hopper, and look for faults");
  const auto options = std::make_shared<SimOptions>();
  add_shape_options(*command, *options);
  command->add_option("--policy", options->policy, "When asynchronous work lands")
      ->check(CLI::IsMember({"eager", "late", "random"}))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the values and the schedule; run i uses seed + i")
      ->check(seed_validator())
      ->type_name("INTEGER")
      ->capture_default_str();
  command->add_option("--runs", options->runs, "Number of runs")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--blocks", options->multiprocessors, "Blocks of the persistent grid")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_study_options(*command, options->study);
  command->add_flag("--variants", options->list_variants,
                    "Print the table of all variants that are built, as CSV, and run nothing");
  command->add_option("--timeline", options->timeline, "Write the last run's timeline (Chrome trace format)")
      ->type_name("FILE.json");
  command->footer(
      "A fault names the rule, the thread, its role, the source lines and the command that replays it\n"
      "(docs/simulator.md). Exit code 1 if a run met one or differs from the oracle.");
  command->callback([options, &result] {
    if (options->q_heads % options->kv_heads != 0)
      throw Failure(Exit::usage, "--kv-heads does not divide --heads");
    if (options->head_dim % 8 != 0) throw Failure(Exit::usage, "--head-dim is not a multiple of 8");
    result = run_sim(*options);
  });
}

}  // namespace tandem::cli
