#include "options.h"

#include <charconv>
#include <cmath>
#include <cstdint>

#include <tandem/attention.hpp>

#include "commit.h"

namespace tandem::cli {
namespace {

constexpr const char* mask_form = "full|causal|window:LEFT,RIGHT";

Failure bad_mask(const std::string& text) {
  return {Exit::usage, "mask '" + text + "' is not one of " + mask_form +
                           ", where LEFT and RIGHT are numbers of keys >= 0, or -1 for no limit"};
}

std::int64_t window_side(std::string_view digits, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value < TANDEM_UNLIMITED) {
    throw bad_mask(text);
  }
  return value;
}

/// All of `text` as a number; false where it is none or does not fit.
template <typename Number>
bool read_number(const std::string& text, Number* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc{} && end == text.data() + text.size();
}

CLI::Validator number_validator(const std::string& what, bool (*allowed)(float)) {
  const auto complaint = [what, allowed](const std::string& text) -> std::string {
    float value = 0;
    if (read_number(text, &value) && std::isfinite(value) && allowed(value)) return "";
    return "'" + text + "' is not a number " + what + " within a float's range";
  };
  return {complaint, what};
}

}  // namespace

tandem_mask parse_mask(const std::string& text) {
  constexpr std::string_view prefix = "window:";
  if (text == "full") return Mask::full().c_mask();
  if (text == "causal") return Mask::causal().c_mask();
  const std::size_t comma = text.find(',');
  if (!text.starts_with(prefix) || comma == std::string::npos) throw bad_mask(text);
  const std::string_view sides = text;
  const std::int64_t left = window_side(sides.substr(prefix.size(), comma - prefix.size()), text);
  return Mask::window(left, window_side(sides.substr(comma + 1), text)).c_mask();
}

std::string spelled(const tandem_mask& mask) {
  if (mask.kind == TANDEM_MASK_FULL) return "full";
  if (mask.kind == TANDEM_MASK_CAUSAL) return "causal";
  return "window:" + std::to_string(mask.window_left) + "," + std::to_string(mask.window_right);
}

tandem_dtype parse_dtype(const std::string& text) {
  if (text == "bf16") return TANDEM_BF16;
  if (text == "fp16") return TANDEM_FP16;
  if (text == "fp32") return TANDEM_FP32;
  throw Failure(Exit::usage, "dtype '" + text + "' is not one of bf16, fp16, fp32");
}

tandem_backend parse_backend(const std::string& text) {
  if (text == "auto") return TANDEM_BACKEND_AUTO;
  if (text == "cpu") return TANDEM_BACKEND_CPU;
  if (text == "hopper") return TANDEM_BACKEND_HOPPER;
  if (text == "reference") return TANDEM_BACKEND_REFERENCE;
  throw Failure(Exit::usage, "backend '" + text + "' is not one of auto, cpu, hopper, reference");
}

CLI::Validator mask_validator() {
  const auto complaint = [](std::string& text) -> std::string {
    try {
      parse_mask(text);
      return "";
    } catch (const Failure& failure) {
      return failure.what();
    }
  };
  return {complaint, mask_form};
}

CLI::Validator positive_number() {
  return number_validator("> 0", [](float value) { return value > 0; });
}

CLI::Validator number_from_zero() {
  return number_validator(">= 0", [](float value) { return value >= 0; });
}

CLI::Validator whole_number_from(std::int64_t least) {
  const std::string range = "from " + std::to_string(least) + " to 2^60";
  const auto complaint = [least, range](const std::string& text) -> std::string {
    constexpr std::int64_t most = std::int64_t{1} << 60;
    std::int64_t value = 0;
    if (read_number(text, &value) && value >= least && value <= most) return "";
    return "'" + text + "' is not a whole number " + range;
  };
  return {complaint, range};
}

CLI::Validator seed_validator() {
  const auto complaint = [](const std::string& text) -> std::string {
    std::uint64_t value = 0;
    return read_number(text, &value) ? "" : "'" + text + "' is not a whole number from 0 to 2^64 - 1";
  };
  return {complaint, ""};
}

CLI::Validator dtype_validator() { return CLI::IsMember({"bf16", "fp16", "fp32"}); }
CLI::Validator backend_validator() { return CLI::IsMember({"auto", "cpu", "hopper", "reference"}); }

tandem_study StudyOptions::c_study() const {
  tandem_study study{};
  study.struct_size = sizeof study;
  if (overlap == "serial") study.overlap = TANDEM_OVERLAP_SERIAL;
  if (overlap == "two-stage") study.overlap = TANDEM_OVERLAP_TWO_STAGE;
  if (overlap == "three-stage") study.overlap = TANDEM_OVERLAP_THREE_STAGE;
  if (turn == "free") study.turn = TANDEM_TURN_FREE;
  if (turn == "pingpong") study.turn = TANDEM_TURN_PINGPONG;
  return study;
}

std::string StudyOptions::arguments() const {
  return (overlap == "auto" ? "" : " --overlap " + overlap) + (turn == "auto" ? "" : " --turn " + turn);
}

void add_study_options(CLI::App& command, StudyOptions& options) {
  command
      .add_option("--overlap", options.overlap,
                  "How a Hopper kernel overlaps products and softmax, for study; the CPU has no such thing")
      ->check(CLI::IsMember({"auto", "serial", "two-stage", "three-stage"}))
      ->type_name("OVERLAP")
      ->capture_default_str();
  command
      .add_option("--turn", options.turn,
                  "Whether a Hopper kernel's warpgroups take turns at the tensor cores, for study")
      ->check(CLI::IsMember({"auto", "free", "pingpong"}))
      ->type_name("TURN")
      ->capture_default_str();
}

std::string built_commit() { return TANDEM_COMMIT; }

}  // namespace tandem::cli
