#include "api/step_as_forward.h"

namespace tandem::api {

core::ForwardProblem as_forward(const core::DecodeProblem& step) {
  core::ForwardProblem p{.q = step.q,
                         .k = step.k_cache,
                         .v = step.v_cache,
                         .o = step.o,
                         .lse = step.lse,
                         .mask = step.mask,
                         .scale = step.scale,
                         .softcap = step.softcap,
                         .sinks = step.sinks,
                         .slopes = step.slopes,
                         .tree = step.tree};
  p.varlen = {.given = true,
              .sequences = step.batch(),
              .seqused_k = step.lengths,
              .page_table = step.page_table,
              .page_table_stride = step.page_table_stride,
              .pages_per_sequence = step.pages_per_sequence,
              .max_seqlen_q = step.q_len(),
              .max_seqlen_k = step.capacity(),
              .rotary = step.rotary,
              .batch_index = step.batch_index};
  if (step.new_len() > 0) p.varlen.k_new = step.k_new, p.varlen.v_new = step.v_new;
  return p;
}

}  // namespace tandem::api
