// Spans of variable lengths, which stay inside of their tensors whatever the numbers are; and views of
// tensors and tables.
#include "core/varlen.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "core/remembered.h"
#include "core/tensor_view.h"

namespace tandem::core {
namespace {

/// Around a tensor of `total` rows, and far from it.
std::vector<std::int32_t> numbers_around(std::int32_t total) {
  std::vector<std::int32_t> numbers = {std::numeric_limits<std::int32_t>::min(), -1000, 1000,
                                       std::numeric_limits<std::int32_t>::max()};
  for (std::int32_t i = -2; i <= total + 2; ++i) numbers.push_back(i);
  return numbers;
}

TEST(Varlen, ASpanHasTheRowsThatThereAreOfThoseThatAreNamed) {
  for (const std::int32_t total : {0, 1, 5})
    for (const std::int32_t begin : numbers_around(total))
      for (const std::int32_t end : numbers_around(total))
        for (const std::int32_t most : {0, 1, 3, 9}) {
          const RowSpan span = span_of(begin, end, total, most);
          std::vector<std::int32_t> rows;
          for (std::int32_t row = std::max(begin, 0); row < std::min(end, total); ++row)
            if (static_cast<std::int32_t>(rows.size()) < most) rows.push_back(row);
          ASSERT_EQ(span.length, static_cast<std::int32_t>(rows.size()))
              << begin << " to " << end << " of " << total << ", most " << most;
          ASSERT_TRUE(span.begin >= 0 && span.begin + span.length <= total);
          if (!rows.empty()) {
            ASSERT_EQ(span.begin, rows.front());
          }
        }
}

// Rows of a cache one by one: those in use, as far as new ones leave room, the new ones, and padding in
// front.
TEST(Varlen, ACacheTakesWhatFits) {
  for (const std::int32_t room : {0, 1, 6})
    for (const std::int32_t used : numbers_around(room))
      for (const std::int32_t added : numbers_around(room))
        for (const std::int32_t padding : numbers_around(room)) {
          const CacheRows rows = cache_rows(used, added, padding, room);
          const std::int64_t fitting = std::clamp<std::int64_t>(added, 0, room);
          std::int64_t before = 0;
          while (before < used && before + fitting < room) ++before;
          std::int64_t begin = 0;
          while (begin < padding && begin < before + fitting) ++begin;
          SCOPED_TRACE(testing::Message()
                       << used << " used, " << added << " added, padding " << padding << ", room " << room);
          ASSERT_EQ(rows.before, before);
          ASSERT_EQ(rows.past, before + fitting);
          ASSERT_EQ(rows.begin, begin);
          for (const std::int32_t most : {0, 2, 100}) {
            ASSERT_EQ(rows.keys(most).begin, begin);
            ASSERT_EQ(rows.keys(most).length, std::min<std::int64_t>(most, before + fitting - begin));
          }
        }
}

TEST(TensorView, FindsRowsByBatchRowAndHead) {
  float elements[4000] = {};
  const Tensor tensor{elements, TANDEM_FP32, {2, 3, 4, 5}, {2000, 300, 40, 1}};
  const TensorView view = TensorView::of(tensor);
  EXPECT_EQ(view.data, elements);
  EXPECT_EQ(view.at(1, 2, 3), 2000 + 600 + 120);
  EXPECT_EQ(view.row<float>(1, 2, 3), elements + 2720);
  EXPECT_EQ(view.row<float>(0, 2, 0), elements + 600);
}

TEST(Rotary, ViewsAreOfTheirTables) {
  const float cos = 1, sin = 0;
  for (const tandem_dtype dtype : {TANDEM_FP32, TANDEM_BF16})
    for (const bool interleaved : {false, true}) {
      const RotaryView view = RotaryView::of({&cos, &sin, dtype, 77, 32, interleaved});
      EXPECT_EQ(view.cos, &cos);
      EXPECT_EQ(view.sin, &sin);
      EXPECT_EQ(view.positions, 77);
      EXPECT_EQ(view.dim, 32);
      EXPECT_EQ(view.fp32, dtype == TANDEM_FP32);
      EXPECT_EQ(view.interleaved, interleaved);
    }
}

/// A question that falls on the same place as every other.
struct Question {
  int number;

  std::uint64_t hash() const { return 3; }
  friend bool operator==(const Question&, const Question&) = default;
};

TEST(Remembered, AnswersTheQuestionThatIsAsked) {
  Remembered<Question, int> known;
  int computed = 0;
  const auto ask = [&](int number) { return known.of({number}, [&] { return ++computed, 10 * number; }); };
  EXPECT_EQ(ask(1), 10);
  EXPECT_EQ(ask(1), 10);
  EXPECT_EQ(computed, 1) << "it was known";
  EXPECT_EQ(ask(2), 20) << "another one on the same place";
  EXPECT_EQ(ask(1), 10);
  EXPECT_EQ(computed, 3);
}

}  // namespace
}  // namespace tandem::core
