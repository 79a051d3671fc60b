#include "quantize/launch.h"

#include "launch/chip.h"
#include "quantize/plan.h"

namespace tandem::quantize {

core::Status launch(const core::QuantizeProblem& problem, void* stream) {
  launch::Chip chip(stream);
  if (core::Status s = chip.open(tensors_of(problem)); !s.ok()) return s;
  return chip.run(make_record(problem, chip.sm_count()));
}

}  // namespace tandem::quantize
