#include "tests/support/varlen_backward_case.h"

#include <algorithm>
#include <numeric>
#include <sstream>

namespace tandem::test {
namespace {

using Place = VarlenBackwardTensors::Place;
using Shape = std::array<std::int64_t, 4>;

/// Rows of a packed tensor behind the last sequence's.
constexpr std::int64_t rows_behind = 4;

std::int64_t longest(const std::vector<std::int64_t>& rows) {
  return rows.empty() ? 0 : *std::max_element(rows.begin(), rows.end());
}

std::int64_t rows_in_use(std::int64_t rows, std::int64_t bound) {
  return bound == 0 ? rows : std::min(rows, bound);
}

/// How one side's rows lie: those of q or those of k.
struct Side {
  const std::vector<std::int64_t>& rows;
  bool packed;
  std::int64_t before, heads;

  Shape shape(std::int64_t columns) const {
    const std::int64_t total = std::accumulate(rows.begin(), rows.end(), before + rows_behind);
    if (packed) return {1, total, heads, columns};
    return {static_cast<std::int64_t>(rows.size()), longest(rows), heads, columns};
  }
};
Side queries_of(const VarlenBackwardCase& c) {
  return {c.q_rows, c.q_packed, c.q_before, c.each.forward.q_heads};
}
Side keys_of(const VarlenBackwardCase& c) {
  return {c.k_rows, c.k_packed, c.k_before, c.each.forward.kv_heads};
}

std::vector<std::int32_t> cumulated(const Side& side) {
  if (!side.packed) return {};
  std::vector<std::int32_t> sums = {static_cast<std::int32_t>(side.before)};
  for (const std::int64_t rows : side.rows) sums.push_back(sums.back() + static_cast<std::int32_t>(rows));
  return sums;
}

VarlenBackwardCase with_whole_entries(VarlenBackwardCase c) {
  if (!c.q_packed) c.q_rows.assign(c.q_rows.size(), longest(c.q_rows));
  if (!c.k_packed) c.k_rows.assign(c.k_rows.size(), longest(c.k_rows));
  return c;
}

/// One sequence's case: rows side by side, values of its own.
BackwardCase case_of(const VarlenBackwardCase& c, std::size_t sequence) {
  BackwardCase own = c.each;
  ForwardCase& f = own.forward;
  f.batch = 1, f.q_len = c.q_len(sequence), f.k_len = c.k_len(sequence);
  f.seed = c.each.forward.seed * 100 + sequence;
  for (Layout* layout :
       {&f.q, &f.k, &f.v, &f.o, &f.lse_layout, &own.dout, &own.dlse_layout, &own.dq, &own.dk, &own.dv})
    *layout = {};
  return own;
}

/// visit(element of `alone`, element of the whole tensor) for all rows of a sequence that are in use.
template <typename Visit>
void for_each_element(const HostTensor& alone, const Place& place, Visit visit) {
  const core::Tensor shape = alone.view();
  for (std::int64_t s = 0; s < shape.shape[1]; ++s)
    for (std::int64_t h = 0; h < shape.shape[2]; ++h)
      for (std::int64_t e = 0; e < shape.shape[3]; ++e)
        visit(Shape{0, s, h, e}, Shape{place.entry, place.row + s, h, e});
}

/// A tensor of a sequence alone, that of all, and whether its rows are queries.
struct Member {
  HostTensor BackwardTensors::*alone;
  HostTensor VarlenBackwardTensors::*whole;
  bool of_queries;

  Place place(const VarlenBackwardTensors& t, std::size_t sequence) const {
    return of_queries ? t.q_place(sequence) : t.k_place(sequence);
  }
};
#define TANDEM_MEMBER(name, of_queries) \
  Member { &BackwardTensors::name, &VarlenBackwardTensors::name, of_queries }
constexpr Member inputs[] = {TANDEM_MEMBER(q, true),   TANDEM_MEMBER(k, false),  TANDEM_MEMBER(v, false),
                             TANDEM_MEMBER(o, true),   TANDEM_MEMBER(lse, true), TANDEM_MEMBER(dout, true),
                             TANDEM_MEMBER(dlse, true)};
constexpr Member dq_member = TANDEM_MEMBER(dq, true), dk_member = TANDEM_MEMBER(dk, false),
                 dv_member = TANDEM_MEMBER(dv, false);
#undef TANDEM_MEMBER

void append(std::vector<double>& all, const std::vector<double>& values) {
  all.insert(all.end(), values.begin(), values.end());
}

/// What is wrong with one gradient.
std::string failure_of_gradient(const VarlenBackwardTensors& t, const Member& member,
                                const std::vector<double>& standard, const std::vector<double>& reference,
                                const Allowance& allowance) {
  const HostTensor& whole = t.*member.whole;
  HostTensor poisoned = whole, others = whole;
  poisoned.poison();
  std::vector<double> result;
  for (std::size_t i = 0; i < t.alone.size(); ++i)
    for_each_element(t.alone[i].*member.alone, member.place(t, i), [&](const Shape&, const Shape& at) {
      result.push_back(whole.at(at[0], at[1], at[2], at[3]));
      others.copy_element(poisoned, at);
    });
  std::ostringstream failure;
  const Comparison comparison = compare(result, standard, reference, allowance);
  if (!comparison) failure << comparison << "; ";
  if (!others.untouched()) failure << "rows of no sequence, or cells between the rows, were written; ";
  return failure.str();
}

/// Entries follow one another then, as packed rows do.
void put_entries_in_order(VarlenBackwardCase& c) {
  BackwardCase& each = c.each;
  ForwardCase& f = each.forward;
  if (!c.q_packed)
    for (Layout* layout : {&f.q, &f.o, &f.lse_layout, &each.dout, &each.dlse_layout, &each.dq}) *layout = {};
  if (!c.k_packed)
    for (Layout* layout : {&f.k, &f.v, &each.dk, &each.dv}) *layout = {};
}

}  // namespace

std::int64_t VarlenBackwardCase::q_len(std::size_t sequence) const {
  return rows_in_use(q_rows[sequence], max_seqlen_q);
}

std::int64_t VarlenBackwardCase::k_len(std::size_t sequence) const {
  const std::int64_t rows = rows_in_use(k_rows[sequence], max_seqlen_k);
  return used.empty() ? rows : std::clamp<std::int64_t>(used[sequence], 0, rows);
}

std::ostream& operator<<(std::ostream& out, const VarlenBackwardCase& c) {
  const auto list = [&out](const char* name, const std::vector<std::int64_t>& numbers) {
    out << name;
    for (const std::int64_t number : numbers) out << " " << number;
  };
  list(c.q_packed ? "queries packed" : "queries of entries", c.q_rows);
  list(c.k_packed ? ", keys packed" : ", keys of entries", c.k_rows);
  if (!c.used.empty()) list(", used", c.used);
  return out << ", bounds " << c.max_seqlen_q << " " << c.max_seqlen_k << ", first rows " << c.q_before << " "
             << c.k_before << ", each: " << c.each;
}

VarlenBackwardCase random_varlen_backward_case(std::uint64_t seed, tandem_dtype dtype, std::int64_t max_len,
                                               bool for_tma) {
  Random random(seed);
  VarlenBackwardCase c;
  c.each =
      for_tma ? random_tma_backward_case(seed, dtype, max_len) : random_backward_case(seed, dtype, max_len);
  ForwardCase& f = c.each.forward;
  if (!for_tma)  // as outputs have them: every row of its own
    for (Layout* layout : {&f.q, &f.k, &f.v, &c.each.dout, &c.each.dlse_layout})
      *layout = random_layout(random);
  const std::uint64_t sequences = 1 + random() % 6;
  for (std::uint64_t i = 0; i < sequences; ++i) {
    c.q_rows.push_back(random_length(random, max_len));
    c.k_rows.push_back(random_length(random, max_len));
  }
  c.q_packed = random() % 4 != 0, c.k_packed = random() % 3 != 0;
  if (for_tma) put_entries_in_order(c);
  c.q_before = static_cast<std::int64_t>(random() % 4), c.k_before = static_cast<std::int64_t>(random() % 4);
  f.mask = random_mask(random, longest(c.q_rows), longest(c.k_rows));
  const auto below_or_above = [&random](std::int64_t rows) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows + 20));
  };
  if (random() % 2 == 0)
    for (const std::int64_t rows : c.k_rows) c.used.push_back(below_or_above(rows) - 5);
  if (random() % 3 == 0) c.max_seqlen_q = 1 + below_or_above(longest(c.q_rows));
  if (random() % 3 == 0) c.max_seqlen_k = 1 + below_or_above(longest(c.k_rows));
  return c;
}

VarlenBackwardTensors::VarlenBackwardTensors(const VarlenBackwardCase& c)
    : setup(with_whole_entries(c)),
      q(c.each.forward.dtype, queries_of(c).shape(c.each.forward.head_dim), c.each.forward.q),
      k(c.each.forward.dtype, keys_of(c).shape(c.each.forward.head_dim), c.each.forward.k),
      v(c.each.forward.dtype, keys_of(c).shape(c.each.forward.head_dim), c.each.forward.v),
      o(c.each.forward.dtype, queries_of(c).shape(c.each.forward.head_dim), c.each.forward.o),
      lse(TANDEM_FP32, queries_of(c).shape(1), c.each.forward.lse_layout),
      dout(c.each.forward.dtype, queries_of(c).shape(c.each.forward.head_dim), c.each.dout),
      dlse(TANDEM_FP32, queries_of(c).shape(1), c.each.dlse_layout),
      dq(c.each.forward.dtype, queries_of(c).shape(c.each.forward.head_dim), c.each.dq),
      dk(c.each.forward.dtype, keys_of(c).shape(c.each.forward.head_dim), c.each.dk),
      dv(c.each.forward.dtype, keys_of(c).shape(c.each.forward.head_dim), c.each.dv),
      sinks(BackwardTensors(case_of({.each = c.each, .q_rows = {0}, .k_rows = {0}}, 0)).sinks),
      dsinks(TANDEM_FP32, {1, 1, 1, c.each.forward.q_heads}),
      cu_seqlens_q(cumulated(queries_of(setup))),
      cu_seqlens_k(cumulated(keys_of(setup))),
      seqused_k(c.used.begin(), c.used.end()) {
  for (std::size_t i = 0; i < c.q_rows.size(); ++i) {
    BackwardTensors& own = alone.emplace_back(case_of(setup, i));
    if (c.each.sinks) {  // the same of all
      for (std::int64_t h = 0; h < c.each.forward.q_heads; ++h)
        own.sinks.set(0, 0, 0, h, static_cast<float>(sinks.at(0, 0, 0, h)));
      own.run_forward();
    }
    own.poison_unseen_rows();
    for (const Member& member : inputs)
      for_each_element(own.*member.alone, member.place(*this, i), [&](const Shape& from, const Shape& to) {
        const double value = (own.*member.alone).at(from[0], from[1], from[2], from[3]);
        (this->*member.whole).set(to[0], to[1], to[2], to[3], static_cast<float>(value));
      });
  }
}

Place VarlenBackwardTensors::q_place(std::size_t sequence) const {
  if (!setup.q_packed) return {static_cast<std::int64_t>(sequence), 0};
  return {0, cu_seqlens_q[sequence]};
}

Place VarlenBackwardTensors::k_place(std::size_t sequence) const {
  if (!setup.k_packed) return {static_cast<std::int64_t>(sequence), 0};
  return {0, cu_seqlens_k[sequence]};
}

core::BackwardProblem VarlenBackwardTensors::problem() const {
  core::BackwardProblem p = shapes_of(setup.each);  // for the mask, the scale and the cap
  p.q = q.view(), p.k = k.view(), p.v = v.view(), p.o = o.view(), p.lse = lse.view();
  p.dout = dout.view(), p.dq = dq.view(), p.dk = dk.view(), p.dv = dv.view();
  p.dlse = setup.each.dlse ? dlse.view() : core::Tensor{};
  if (setup.each.sinks) {
    p.sinks = static_cast<const float*>(sinks.view().data);
    p.dsinks = static_cast<float*>(dsinks.view().data);
  }
  const auto pointer = [](const std::vector<std::int32_t>& words) {
    return words.empty() ? nullptr : words.data();
  };
  const auto bound = [](std::int64_t given, const core::Tensor& rows) {
    return rows_in_use(rows.shape[1], given);
  };
  p.varlen = {.given = true,
              .sequences = setup.sequences(),
              .cu_seqlens_q = pointer(cu_seqlens_q),
              .cu_seqlens_k = pointer(cu_seqlens_k),
              .seqused_k = pointer(seqused_k),
              .max_seqlen_q = bound(setup.max_seqlen_q, p.q),
              .max_seqlen_k = bound(setup.max_seqlen_k, p.k)};
  return p;
}

VarlenBackwardExpected::VarlenBackwardExpected(const VarlenBackwardTensors& t)
    : dsinks(t.setup.each.sinks ? static_cast<std::size_t>(t.setup.each.forward.q_heads) : 0) {
  for (const BackwardTensors& own : t.alone) {
    const core::BackwardProblem p = own.problem();
    const cpu::ReferenceGradients exact = cpu::reference_gradients(p);
    const BackwardValues plain = standard_backward(p);
    append(reference.dq, exact.dq), append(reference.dk, exact.dk), append(reference.dv, exact.dv);
    append(standard.dq, plain.dq), append(standard.dk, plain.dk), append(standard.dv, plain.dv);
    for (std::size_t h = 0; h < dsinks.size(); ++h) {
      const BackwardTensors::SinkGradient part = own.sink_gradient(static_cast<std::int64_t>(h));
      dsinks[h].gradient += part.gradient, dsinks[h].magnitude += part.magnitude;
    }
    const Allowance own_allowance = gradient_allowance(p);
    if (own_allowance.noise >= allowance.noise) allowance = own_allowance;
  }
}

std::string failure_of(const VarlenBackwardTensors& t, const VarlenBackwardExpected& expected) {
  const auto& [reference, standard, dsinks, allowance] = expected;
  std::string failure;
  const auto add = [&failure](const char* name, const std::string& what) {
    if (!what.empty()) failure += std::string(name) + ": " + what;
  };
  add("dq", failure_of_gradient(t, dq_member, standard.dq, reference.dq, allowance));
  add("dk", failure_of_gradient(t, dk_member, standard.dk, reference.dk, allowance));
  add("dv", failure_of_gradient(t, dv_member, standard.dv, reference.dv, allowance));
  return failure + failure_of_dsinks(t.dsinks, dsinks);
}

bool has_rows(const HostTensor& whole, const Place& place, const HostTensor& alone) {
  bool same = true;
  for_each_element(alone, place, [&](const Shape& own, const Shape& at) {
    same = same && whole.at(at[0], at[1], at[2], at[3]) == alone.at(own[0], own[1], own[2], own[3]);
  });
  return same;
}

bool has_gradients(const VarlenBackwardTensors& whole, std::size_t sequence, const BackwardTensors& alone) {
  return has_rows(whole.dq, whole.q_place(sequence), alone.dq) &&
         has_rows(whole.dk, whole.k_place(sequence), alone.dk) &&
         has_rows(whole.dv, whole.k_place(sequence), alone.dv);
}

}  // namespace tandem::test
