// The dQ writers of a tile of keys (Algorithm 3, lines 30-34): a warp for each consumer brings its parts of
// dQ to the ring of sums, and the last tile's, which are dQ, to global memory.
#pragma once

#include "backward/keys_producer.h"
#include "backward/ring.h"

namespace tandem::backward {

/// A thread of its own counts visits: the release takes longer than a writer has time for.
template <BackwardVariant V>
TANDEM_DEVICE void count_visits(const BackwardArguments& args, KeysShared<V>& shared, int steps,
                                tile::PipelineState<1>& at) {
  for (; steps > 0; --steps, at.advance()) {
    for (FinishedVisit& finished : shared.dq_pipelines.finished) {
      finished.pipeline.wait_filled(at);
      const int counter = finished.counter;
      hw::barrier_arrive(finished.pipeline.emptied[0]);
      if (counter != PartVisit::nobodys) hw::signal_counter(args.ring.visits + counter);
    }
  }
}

/// One thread.
template <BackwardVariant V>
struct DqWriter {
  const BackwardArguments& args;
  KeysShared<V>& shared;
  int consumer;
  tile::PipelineState<1> at{};

  /// Lines 31-34 for the tile that was taken, which is given back when all of its last step is known: the
  /// consumers learn of the next one while that is added.
  TANDEM_DEVICE void write_tile(TakenTiles& taken) {
    const KeyWork& work = taken.work;
    for_each_step(args, work, [&](const Step& step) {  // line 31
      const PartPlace place = place_of_part<V>(step, consumer);
      const PartVisit visit = visit_of<V>(args, work, place, step);
      const auto rows = query_box<V>(work, place.head, place.first_query).right_by(place.first_column);
      if (step.is_last) taken.release(Listener::thread);
      prepare(visit);
      if (visit.is_last) {
        store(visit, rows);
      } else {
        add(visit);
      }
      at.advance();
    });
  }

 private:
  TANDEM_DEVICE tile::Handover<1>& parts() const { return shared.dq_pipelines.part[consumer]; }
  TANDEM_DEVICE auto& part() const { return shared.dq.part[consumer]; }

  /// The visits before are over, for what the thread starts from here on.
  TANDEM_DEVICE void wait_for_turn(const PartVisit& visit) const {
    if (visit.before == 0) return;
    hw::wait_counter(args.ring.visits + visit.turn, visit.before);
    hw::fence_async_proxy_global();
  }

  /// Fetches the sums of the tiles before where this one is the last, for the consumer, to the place of the
  /// part, which has been read.
  TANDEM_DEVICE void prepare(const PartVisit& visit) const {
    auto& arrived = shared.dq_pipelines.sums[consumer];
    if (!visit.is_last || visit.is_first) return hw::barrier_arrive(arrived);
    constexpr std::uint32_t bytes = part_elements * sizeof(float);
    wait_for_turn(visit);
    hw::barrier_arrive_expecting(arrived, bytes);
    hw::copy_in(part().value, args.ring.sums + static_cast<std::int64_t>(visit.part) * part_elements, bytes,
                arrived);
  }

  /// Adds the part, or stores it where it is the first.
  TANDEM_DEVICE void add(const PartVisit& visit) const {
    wait_for_turn(visit);
    parts().wait_filled(at);  // line 32
    const hw::BoxOrigin origin{0, visit.part * part_box_rows, 0, 0};
    if (visit.is_first) {
      hw::store_box(args.dq_sums, origin, part().value);
    } else {
      hw::reduce_add_box(args.dq_sums, origin, part().value);  // line 33
    }
    hw::commit_stores();
    hw::wait_stores_read<0>();
    hw::barrier_arrive(parts().emptied[0]);
    hw::wait_stores<0>();  // not only read: whoever is next adds to what was written
    tell_finished(visit.finished);
  }

  /// The part is dQ of the rows.
  TANDEM_DEVICE void store(const PartVisit& visit, const auto& rows) const {
    parts().wait_filled(at);
    hw::store_box(args.dq_rows, rows, part().value);
    hw::commit_stores();
    hw::wait_stores_read<0>();
    hw::barrier_arrive(parts().emptied[0]);
    if constexpr (V.is_varlen()) {
      if (visit.is_first) wait_for_turn(visit);  // who has the place next counts on those before, too
    }
    tell_finished(visit.finished);  // its sums have been read
  }

  /// Hands the visit to who counts it.
  TANDEM_DEVICE void tell_finished(int counter) const {
    FinishedVisit& finished = shared.dq_pipelines.finished[consumer];
    finished.pipeline.wait_emptied(at);
    finished.counter = counter;
    hw::barrier_arrive(finished.pipeline.filled[0]);
  }
};

}  // namespace tandem::backward
