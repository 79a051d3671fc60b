// Launches kernels that break a rule, and says whether the fault names it.
#pragma once

#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "hw/hw.h"
#include "hw/sim/machine.h"

namespace tandem {

using hw::Accumulate;
using hw::Major;
using hw::MatrixDescriptor;
using hw::Operand;
using hw::Swizzle;
using hw::sim::Buffer;
using hw::sim::LaunchConfig;
using hw::sim::Policy;
using hw::sim::Report;
using hw::sim::Rule;

constexpr std::uint32_t tile_bytes = 64 * 64 * 2;

struct Shared {
  alignas(1024) std::uint16_t a[64][64];
  alignas(1024) std::uint16_t b[64][64];
  hw::Barrier full, empty;
  std::uint32_t words[256];
};

class Faults : public testing::TestWithParam<Policy> {
 protected:
  Faults() : memory_(64 * 64 * 2 + 8, 0x3f80) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    tensor_ = memory_.data() + (16 - address % 16) % 16 / 2;
    hw::sim::TensorMapSpec spec{
        .address = tensor_, .dims = {64, 128, 1, 1}, .stride_bytes = {128, 128, 128}, .box = {64, 64, 1, 1}};
    map_ = hw::sim::encode_tensor_map(spec);
    config_.shared_bytes = sizeof(Shared);
    config_.policy = GetParam();
    config_.seed = 11;
    config_.replay = "the command";
  }

  /// The launch has to end with this fault, naming a line of this file, the policy, the seed and the replay
  /// command.
  void expect(Rule rule, const std::function<void()>& body, const std::string& words = "") {
    expect_one_of({rule}, body, words);
  }
  /// The same where it depends on the order of threads which of two faults comes first.
  void expect_one_of(const std::vector<Rule>& rules, const std::function<void()>& body,
                     const std::string& words = "") {
    const Report report = hw::sim::launch(config_, body);
    ASSERT_FALSE(report.ok()) << "no fault; expected " << hw::sim::name_of(rules[0]);
    RecordProperty("check_" + std::to_string(checks_++),
                   report.fault->check);  // for every_check_is_reached.py
    EXPECT_NE(std::find(rules.begin(), rules.end(), report.fault->rule), rules.end()) << report.text();
    EXPECT_NE(report.text().find("at tests/sim/"), std::string::npos) << report.text();
    EXPECT_NE(report.text().find(words), std::string::npos) << report.text();
    EXPECT_NE(report.text().find("seed 11"), std::string::npos) << report.text();
    EXPECT_NE(report.text().find("replay: the command"), std::string::npos) << report.text();
  }
  void expect_none(const std::function<void()>& body) {
    const Report report = hw::sim::launch(config_, body);
    EXPECT_TRUE(report.ok()) << report.text();
  }

  static Shared& shared() { return hw::shared_memory<Shared>(); }
  static bool first_thread() { return hw::thread_index() == 0; }
  static MatrixDescriptor descriptor(const void* tile) {
    return MatrixDescriptor::make(hw::shared_address(tile), 0, 1024, Swizzle::bytes128);
  }
  /// Barriers for one producer thread and `consumers` releases.
  static void init(std::uint32_t consumers = 1) {
    if (first_thread()) {
      hw::barrier_init(shared().full, 1);
      hw::barrier_init(shared().empty, consumers);
      hw::fence_barrier_init();
    }
    hw::sync_block();
  }
  void load(void* tile) const { hw::load_box(tile, map_, shared().full, {0, 0, 0, 0}); }
  void load_expected(void* tile) const {
    hw::barrier_arrive_expecting(shared().full, tile_bytes);
    load(tile);
  }
  /// All threads fill both tiles with ordinary stores.
  static void fill_tiles() {
    const std::uint32_t thread = hw::thread_index();
    for (std::uint32_t i = thread; i < 64 * 64; i += 128) {
      shared().a[i / 64][i % 64] = 0x3f80;
      shared().b[i / 64][i % 64] = 0x3f80;
    }
  }
  static void multiply(float (&d)[32]) {
    hw::wgmma_ss<Operand::bf16, 64, Major::k>(d, descriptor(shared().a), descriptor(shared().b),
                                              Accumulate::overwrite);
    hw::wgmma_commit();
  }

  int checks_ = 0;  ///< faults that the test has met
  LaunchConfig config_;
  hw::TensorMap map_;
  std::vector<std::uint16_t> memory_;
  const std::uint16_t* tensor_;
};

/// Keeps what is read into it.
inline volatile float sink;

}  // namespace tandem
