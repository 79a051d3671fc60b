// Answers that depend on little, remembered: of a few questions at a time, the last ones asked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace tandem::core {

/// `Question` has == and a hash(); each place keeps the last question that fell on it.
template <typename Question, typename Answer, std::size_t places = 16>
class Remembered {
 public:
  /// The answer that compute() gives to the question, unless it is known.
  template <typename Compute>
  const Answer& of(const Question& question, Compute&& compute) {
    std::optional<Known>& known = known_[question.hash() % places];
    if (!known || !(known->question == question)) known = Known{question, compute()};
    return known->answer;
  }

 private:
  struct Known {
    Question question;
    Answer answer;
  };
  std::array<std::optional<Known>, places> known_{};
};

/// Mixes a number into a hash. Source: Fowler, Noll and Vo, FNV-1a, by words.
constexpr std::uint64_t mixed(std::uint64_t hash, std::uint64_t number) {
  return (hash ^ number) * std::uint64_t{0x100000001b3};
}

}  // namespace tandem::core
