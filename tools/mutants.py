"""The table of mutants: one wait, fence, barrier, phase, count, index, swizzle or descriptor field changed each."""

import dataclasses


DECODE_ONLY = ("src/decode/", "src/core/stream_k.h")


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    kind: str
    file: str
    old: str  # stands exactly once in the file
    new: str
    head_dim: int = 64  # whose kernels show it

    @property
    def kernel(self):
        """Whose tests show it: the forward kernels' where both include the file."""
        return "decode" if self.file.startswith(DECODE_ONLY) else "forward"


RING = "src/tile/ring.h"
TILE = "src/tile/shared_tile.h"
GEMM = "src/tile/gemm.h"
SERIAL = "src/forward/overlap_serial.h"
TWO = "src/forward/overlap_two_stage.h"
THREE = "src/forward/overlap_three_stage.h"
KERNEL = "src/forward/kernel.h"
PRODUCER = "src/forward/producer.h"
CONSUMER = "src/forward/consumer.h"
TURN = "src/forward/turn.h"
VARIANT = "src/forward/variant.h"
TYPES = "src/hw/types.h"
EPILOGUE = "src/forward/epilogue.h"
PACKING = "src/forward/packing.h"
WORK = "src/forward/work.h"
SCORE_MASK = "src/forward/score_mask.h"
SOFTMAX = "src/tile/softmax.h"
DECODE_KERNEL = "src/decode/kernel.h"
DECODE_PRODUCER = "src/decode/producer.h"
DECODE_CONSUMER = "src/decode/consumer.h"
PLAIN = "src/decode/plain.h"
TRANSPOSED = "src/decode/transposed.h"
SHARED_P = "src/decode/shared_p.h"
REGISTER_P = "src/decode/register_p.h"
DECODE_WORK = "src/decode/work.h"
PARTIALS = "src/decode/partials.h"
STREAM_K = "src/core/stream_k.h"

WAIT_FULL = "  hw::barrier_wait(ring.full[at.slot], at.parity);\n"
WAIT_EMPTY = "  hw::barrier_wait(ring.empty[at.slot], at.parity ^ 1u);\n"
ARRIVE = "  if (hw::lane_index() == 0) hw::barrier_arrive(ring.empty[at.slot]);\n"

MUTANTS = [
    # Waits on barriers
    Mutant("no wait for a full slot", "wait", RING, WAIT_FULL, ""),
    Mutant("no wait for an empty slot", "wait", RING, WAIT_EMPTY, ""),
    Mutant("only one lane waits for a full slot", "wait", RING, WAIT_FULL,
           "  if (hw::lane_index() == 0)\n  " + WAIT_FULL),
    Mutant("serial: no wait for K", "wait", SERIAL, "    tile::wait_full(shared.k_ring, k_at);  // line 16\n", ""),
    Mutant("serial: no wait for V", "wait", SERIAL, "    tile::wait_full(shared.v_ring, v_at);  // line 20\n", ""),
    Mutant("two-stage: no wait for V in the loop", "wait", TWO,
           "    tile::wait_full(shared.v_ring, v_at);  // line 10\n", ""),
    Mutant("two-stage: no wait for the last V", "wait", TWO,
           "  tile::wait_full(shared.v_ring, v_at);  // line 18\n", ""),
    Mutant("no wait for the queries", "wait", KERNEL,
           "    tile::wait_full(shared.q_ring[consumer], state.at.q);", "    ;"),
    # Phases
    Mutant("parity never flips", "phase", RING, "    parity ^= slot == 0 ? 1u : 0u;\n", ""),
    Mutant("parity flips at every slot", "phase", RING, "slot == 0 ? 1u : 0u", "1u"),
    Mutant("producer waits for the consumer's parity", "phase", RING, "at.parity ^ 1u", "at.parity"),
    Mutant("consumer waits for the other parity", "phase", RING, WAIT_FULL,
           WAIT_FULL.replace("at.parity", "at.parity ^ 1u")),
    Mutant("positions begin in parity 1", "phase", RING, "std::uint32_t parity = 0;", "std::uint32_t parity = 1;"),
    # Arrivals and bytes
    Mutant("slots are never released", "arrival", RING, ARRIVE, ""),
    Mutant("every lane releases the slot", "arrival", RING, "if (hw::lane_index() == 0) ", ""),
    Mutant("full barrier counts 2 arrivals", "arrival", RING, "hw::barrier_init(full[i], 1);",
           "hw::barrier_init(full[i], 2);"),
    Mutant("empty barrier counts one arrival too few", "arrival", RING, "hw::barrier_init(empty[i], releases);",
           "hw::barrier_init(empty[i], releases - 1);"),
    Mutant("empty barrier counts one arrival too many", "arrival", RING, "hw::barrier_init(empty[i], releases);",
           "hw::barrier_init(empty[i], releases + 1);"),
    Mutant("one consumer's releases free K", "arrival", KERNEL, "shared.k_ring.init(consumer_warps);",
           "shared.k_ring.init(warps);"),
    Mutant("one consumer's releases free V", "arrival", KERNEL, "shared.v_ring.init(consumer_warps);",
           "shared.v_ring.init(warps);"),
    Mutant("arrival without bytes", "bytes", RING, "hw::barrier_arrive_expecting(ring.full[at.slot], bytes);",
           "hw::barrier_arrive(ring.full[at.slot]);"),
    Mutant("half of the bytes expected", "bytes", RING, "(ring.full[at.slot], bytes)", "(ring.full[at.slot], bytes / 2)"),
    Mutant("16 bytes too many expected", "bytes", RING, "(ring.full[at.slot], bytes)", "(ring.full[at.slot], bytes + 16)"),
    Mutant("bytes of one panel expected of two", "bytes", TILE, "bytes = panels * panel_bytes;", "bytes = panel_bytes;", 128),
    # Slots released early, late, or the wrong one
    Mutant("serial: K released before its product is waited for", "release", SERIAL,
           "    hw::wgmma_wait<0>();\n    tile::release_slot(shared.k_ring, k_at);  // line 22 for K, which nothing reads any more\n",
           "    tile::release_slot(shared.k_ring, k_at);\n    hw::wgmma_wait<0>();\n"),
    Mutant("two-stage: V released before its product is waited for", "release", TWO,
           "    tile::release_slot(shared.k_ring, k_at);  // line 15 for K\n",
           "    tile::release_slot(shared.k_ring, k_at);\n    tile::release_slot(shared.v_ring, v_at);\n"),
    Mutant("two-stage: K released twice in place of V", "release", TWO,
           "    tile::release_slot(shared.v_ring, v_at);  // line 15 for V\n",
           "    tile::release_slot(shared.k_ring, k_at);\n"),
    Mutant("two-stage: last V never released", "release", TWO,
           "  tile::release_slot(shared.v_ring, v_at);\n  v_at.advance();\n", "  v_at.advance();\n", 256),
    Mutant("queries released before the last scores", "release", SERIAL, "const bool last = j + 1 == state.walk.count;",
           "const bool last = j + 2 == state.walk.count;"),
    Mutant("queries' position never advances", "phase", CONSUMER, "  state.at.q.advance();\n", ""),
    Mutant("no warp barrier before the release of queries that meet no key", "sync", KERNEL, "      hw::sync_warp();", "      ;"),
    # WGMMA waits and fences
    Mutant("serial: scores not waited for", "wgmma", SERIAL, "    state.turn.pass();\n    hw::wgmma_wait<0>();\n",
           "    state.turn.pass();\n"),
    Mutant("two-stage: scores waited for with one group too many pending", "wgmma", TWO,
           "    hw::wgmma_wait<1>();                      // line 12\n", "    hw::wgmma_wait<2>();\n"),
    Mutant("two-stage: output not waited for in the loop", "wgmma", TWO,
           "    hw::wgmma_wait<0>();                      // line 14\n", ""),
    Mutant("two-stage: wait leaves the output pending", "wgmma", TWO,
           "    hw::wgmma_wait<0>();                      // line 14\n", "    hw::wgmma_wait<1>();\n"),
    Mutant("two-stage: last output not waited for", "wgmma", TWO,
           "// line 19\n  hw::wgmma_wait<0>();\n", "// line 19\n"),
    Mutant("three-stage: products not waited for", "wgmma", THREE, "    hw::wgmma_wait<0>();  // line 14\n", ""),
    Mutant("no fence before the scores", "fence", CONSUMER, "  hw::wgmma_fence();\n  tile::start_scores", "  tile::start_scores"),
    Mutant("no fence before the output", "fence", CONSUMER, "  hw::wgmma_fence();\n  tile::start_output", "  tile::start_output"),
    Mutant("scores not committed", "wgmma", CONSUMER,
           "state.shared.k[state.at.k.slot]);\n  hw::wgmma_commit();\n", "state.shared.k[state.at.k.slot]);\n"),
    Mutant("output not committed", "wgmma", CONSUMER,
           "state.shared.v[state.at.v.slot]);\n  hw::wgmma_commit();\n", "state.shared.v[state.at.v.slot]);\n"),
    Mutant("two-stage: probabilities rounded while a product reads them", "wgmma", TWO,
           "    hw::wgmma_wait<0>();                      // line 14\n",
           "    tile::round_probabilities<V.operand>(p, scores);\n    hw::wgmma_wait<0>();\n"),
    Mutant("two-stage: output rescaled while a product writes it", "wgmma", TWO,
           "    hw::wgmma_wait<0>();                      // line 14\n",
           "    tile::scale_rows(state.output, {1.f, 1.f});\n    hw::wgmma_wait<0>();\n"),
    # From tile to tile
    Mutant("next tile: no wait for its queries", "wait", TWO,
           "  tile::wait_full(shared.q_ring[state.turn.consumer], q_at);  // line 3, next\n", ""),
    Mutant("next tile: no wait for its first K", "wait", TWO,
           "  tile::wait_full(shared.k_ring, k_at);                       // line 3, next\n", ""),
    Mutant("next tile: no wait for the old one's last V", "wait", TWO,
           "  tile::wait_full(shared.v_ring, v_at);  // line 18, old\n", ""),
    Mutant("next tile: its scores not waited for", "wgmma", TWO, "  hw::wgmma_wait<1>();                      // line 4, next\n", ""),
    Mutant("next tile: the old output stored before it is complete", "wgmma", TWO,
           "  hw::wgmma_wait<0>();                          // line 19, old\n", ""),
    Mutant("next tile: the old one's V never released", "arrival", TWO,
           "  tile::release_slot(shared.v_ring, v_at);      // line 19, old\n", ""),
    Mutant("next tile: begins with the old output", "index", TWO, "  state.clear_output();                         // line 2, next\n",
           ""),
    Mutant("next tile: the old one stored with the new one's sums", "index", TWO, "store_tile(state, work, finished);",
           "store_tile(state, work, state.softmax);"),
    Mutant("two-stage: queries released a block early", "release", CONSUMER, "position + 1 == state.walk.count",
           "position + 2 == state.walk.count"),
    Mutant("no wait for the grid ahead", "wait", KERNEL, "  hw::wait_for_prior_grid();\n", ""),
    # The output that leaves by TMA
    Mutant("staged output: written while the store before reads it", "wait", EPILOGUE,
           "  if (lane == 0) hw::wait_stores_read<0>();  // those of the tile before\n", ""),
    Mutant("staged output: no proxy fence before the store", "fence", EPILOGUE, "  hw::fence_async_proxy();\n", ""),
    Mutant("staged output: stored before all lanes have written it", "sync", EPILOGUE,
           "  hw::fence_async_proxy();\n  hw::sync_warp();\n", "  hw::fence_async_proxy();\n"),
    Mutant("staged output: the warp ends before its store has read", "wait", EPILOGUE,
           "    if (hw::lane_index() == 0) hw::wait_stores_read<0>();\n", ""),
    Mutant("staged output: never committed", "arrival", EPILOGUE, "  hw::commit_stores();\n", ""),
    # Heads of a group in one tile
    Mutant("packed heads: every row is the pack's first head", "index", PACKING,
           "(pack << log2_heads) + (row & (heads() - 1))", "pack << log2_heads"),
    Mutant("packed heads: a row's number is its query", "index", PACKING, "return row >> log2_heads;", "return row;"),
    Mutant("packed heads: a pack's number is its first head", "index", PACKING, "(pack << log2_heads) +", "pack +"),
    Mutant("packed heads: boxes begin where plain ones would", "index", WORK,
           "  if (args.packing.heads() > 1) return {0, head, query, tile.batch};\n", ""),
    Mutant("packed heads: rows see the keys of plain ones", "index", SCORE_MASK, "args.packing.query(row + 8 * i)", "row + 8 * i"),
    Mutant("packed heads: the walk begins at a plain tile's keys", "index", WORK, "first = args.packing.query(row),",
           "first = row,"),
    # Consumers that walk apart
    Mutant("walking apart: keys that pass by are not waited for", "wait", CONSUMER,
           "  tile::wait_full(state.shared.k_ring, state.at.k);\n  state.turn.take();", "  state.turn.take();", 256),
    Mutant("walking apart: values that pass by are not waited for", "wait", CONSUMER,
           "  tile::wait_full(state.shared.v_ring, state.at.v);\n  hw::sync_warp();", "  hw::sync_warp();", 256),
    Mutant("walking apart: keys that pass by are not given back", "arrival", CONSUMER,
           "  tile::release_slot(state.shared.k_ring, state.at.k);\n  state.at.k.advance();", "  state.at.k.advance();"),
    Mutant("walking apart: values that pass by are not given back", "arrival", CONSUMER,
           "  tile::release_slot(state.shared.v_ring, state.at.v);\n  state.at.v.advance();", "  state.at.v.advance();"),
    Mutant("walking apart: keys given back before all lanes have left the wait", "sync", CONSUMER,
           "  hw::sync_warp();  // as in kernel.h\n", "", 256),
    Mutant("walking apart: a block that passes by takes no turn", "arrival", CONSUMER, "  state.turn.take();\n  state.turn.pass();\n", ""),
    Mutant("walking apart: nothing passes by before a tile", "index", KERNEL,
           "    if (walks_apart<V>) pass_by(state, work.aside.before);\n", ""),
    Mutant("walking apart: nothing passes by behind a tile", "index", TWO,
           "      if (walks_apart<V> && edge_after<V>) pass_by(state, work.aside.after);\n", "", 256),
    Mutant("walking apart: tiles follow however much passes by", "wait", TWO,
           "(!walks_apart<V> || work.aside.after + next.aside.before <= 1)", "true", 96),
    Mutant("walking apart: blocks aside counted from the tile's other end", "index", "src/core/mask.h",
           "BlocksAside{lower, upper} : BlocksAside{upper, lower}", "BlocksAside{upper, lower} : BlocksAside{lower, upper}"),
    # Order and reference
    Mutant("maxima of negative scores as bits say", "index", SOFTMAX,
           "      if (!hw::any_lane(row_max[0] < 0.f || row_max[1] < 0.f)) return;\n", "      return;\n", 256),
    Mutant("the walk's masked blocks are those of the other direction", "index", "src/core/mask.h",
           "return {end - 1, -1, end - full_end, end - full_begin, end - begin};",
           "return {end - 1, -1, full_begin - begin, full_end - begin, end - begin};"),
    # Initialisation
    Mutant("no fence after the barriers' initialisation", "fence", KERNEL, "    hw::fence_barrier_init();\n", ""),
    Mutant("no block barrier after the initialisation", "sync", KERNEL, "  hw::sync_block();\n", ""),
    Mutant("queries' rings are not initialised", "sync", KERNEL, "    for (auto& ring : shared.q_ring) ring.init(warps);\n", ""),
    # Slots and places
    Mutant("K copied to the other slot", "index", PRODUCER, "tile::load_tile(shared.k[k_at.slot]",
           "tile::load_tile(shared.k[k_at.slot ^ 1]"),
    Mutant("V's bytes arrive at K's barrier", "index", PRODUCER, "shared.v_ring.full[v_at.slot]", "shared.k_ring.full[v_at.slot]"),
    Mutant("scores of the other slot", "index", CONSUMER, "state.shared.k[state.at.k.slot]", "state.shared.k[state.at.k.slot ^ 1]"),
    Mutant("output from the first slot always", "index", CONSUMER, "state.shared.v[state.at.v.slot]", "state.shared.v[0]"),
    Mutant("consumers read one consumer's queries", "index", CONSUMER, "state.shared.q[state.turn.consumer]", "state.shared.q[0]"),
    Mutant("ring wraps one slot late", "index", RING, "slot + 1 == stages", "slot == stages"),
    Mutant("V of the block before", "index", PRODUCER, "args.v, shared.v_ring.full[v_at.slot], keys(work, i),",
           "args.v, shared.v_ring.full[v_at.slot], keys(work, i - 1),"),
    # Descriptors and swizzles
    Mutant("operand without swizzle", "descriptor", TYPES, "static_cast<std::uint64_t>(swizzle) << 62",
           "static_cast<std::uint64_t>(0) << 62"),
    Mutant("operand with the 64-byte swizzle", "descriptor", TYPES, "static_cast<std::uint64_t>(swizzle) << 62",
           "std::uint64_t{2} << 62"),
    Mutant("atoms of 4 rows", "descriptor", TILE, "constexpr int atom_bytes = atom_rows * row_bytes;",
           "constexpr int atom_bytes = atom_rows * row_bytes / 2;"),
    Mutant("leading and stride offsets exchanged", "descriptor", TYPES,
           "field(leading_bytes) << 16 | field(stride_bytes) << 32", "field(stride_bytes) << 16 | field(leading_bytes) << 32"),
    Mutant("panels of MN-major operands one row apart", "descriptor", TILE, "panel_bytes, atom_bytes,", "row_bytes, atom_bytes,", 128),
    Mutant("K steps of 8 elements", "descriptor", TILE, "(step % steps_per_panel) * k_step * 2", "(step % steps_per_panel) * k_step"),
    Mutant("K-major panels ignored", "descriptor", TILE, "(step / steps_per_panel) * panel_bytes + ", "", 128),
    Mutant("MN-major steps of 8 rows", "descriptor", TILE, "step * k_step * row_bytes", "step * k_step / 2 * row_bytes"),
    Mutant("all panels copied to the first", "descriptor", TILE, "hw::load_box(tile.panel[p]", "hw::load_box(tile.panel[0]", 128),
    Mutant("scores accumulate on what was there", "wgmma", GEMM, "hw::Accumulate::overwrite", "hw::Accumulate::add"),
    # Turns and registers
    Mutant("the first turn is never passed", "turn", TURN, "hw::arrive_named(barrier_of(0), threads);", ";"),
    Mutant("turns count one warpgroup", "turn", TURN, "threads = 2 * hw::warpgroup_size;", "threads = hw::warpgroup_size;"),
    Mutant("turns are never passed on", "turn", TURN, "consumer + 1 == V.consumers() ? 0 : consumer + 1", "consumer"),
    Mutant("consumers take more registers than there are", "registers", VARIANT, "consumers() == 3 ? 160", "consumers() == 3 ? 168"),
    Mutant("the producer keeps its registers", "registers", KERNEL, "    hw::release_registers<V.producer_registers()>();  // line 3\n", ""),
    Mutant("half of the warp elects itself", "divergence", KERNEL, "hw::warp_index() == 0 && hw::elect_one()",
           "hw::warp_index() == 0 && hw::lane_index() < 16 && hw::elect_one()"),
    # Decode: waits
    Mutant("decode: no wait for K", "wait", DECODE_CONSUMER, "    tile::wait_full(shared.k_ring, k_at);\n", ""),
    Mutant("decode: no wait for V", "wait", DECODE_CONSUMER, "void wait_values() { tile::wait_full(shared.v_ring, v_at); }",
           "void wait_values() {}"),
    Mutant("decode: rows of V replaced before it is waited for", "wait", DECODE_CONSUMER,
           "    tile::wait_full(shared.v_ring, v_at);\n    hw::sync_warp();\n", "    hw::sync_warp();\n"),
    Mutant("decode: producer does not wait for an empty slot", "wait", DECODE_PRODUCER,
           "    hw::barrier_wait(ring.empty[at.slot], at.parity ^ 1u);\n", ""),
    Mutant("decode: the last lane's wait only", "wait", DECODE_CONSUMER, "    tile::wait_full(shared.k_ring, k_at);\n",
           "    if (hw::lane_index() == 31) tile::wait_full(shared.k_ring, k_at);\n"),
    # The wait of flash-attention#2481.
    Mutant("decode: no wait for the grid before", "wait", DECODE_KERNEL, "  hw::wait_for_prior_grid();\n", ""),
    # Decode: arrivals, slots released early or by too few
    Mutant("decode: every lane announces the bytes", "arrival", DECODE_PRODUCER,
           "if (hw::lane_index() == 0) hw::barrier_arrive_expecting", "hw::barrier_arrive_expecting"),
    Mutant("decode: one warp's release frees K", "arrival", DECODE_KERNEL, "shared.k_ring.init(warps);",
           "shared.k_ring.init(1);"),
    Mutant("decode: K released before its product is waited for", "release", SHARED_P,
           "    hw::wgmma_wait<0>();\n    consumer.release_keys();\n", "    consumer.release_keys();\n    hw::wgmma_wait<0>();\n"),
    Mutant("decode: V released before its product is waited for", "release", PLAIN,
           "    hw::wgmma_wait<0>();\n    consumer.release_values();\n",
           "    consumer.release_values();\n    hw::wgmma_wait<0>();\n"),
    Mutant("decode: no warp barrier before the release of V", "sync", REGISTER_P,
           "    hw::sync_warp();\n    consumer.release_values();\n", "    consumer.release_values();\n"),
    # Decode: fences. What FlashKDA#24 (proxy, barriers' initialisation) and tilelang#2634 (before WGMMA) lacked.
    Mutant("decode: no proxy fence after the queries", "fence", DECODE_CONSUMER,
           "void publish_queries() {\n    hw::fence_async_proxy();\n", "void publish_queries() {\n"),
    Mutant("decode: no proxy fence after the replaced rows", "fence", DECODE_CONSUMER,
           "    replace_rows(item, key);\n    hw::fence_async_proxy();\n", "    replace_rows(item, key);\n"),
    Mutant("decode: no proxy fence after P", "fence", SHARED_P, "    hw::fence_async_proxy();\n", ""),
    Mutant("decode: no fence before the scores", "fence", TRANSPOSED, "  hw::wgmma_fence();\n", ""),
    Mutant("decode: no fence before the output", "fence", SHARED_P, "  hw::wgmma_fence();\n", ""),
    Mutant("decode: no fence after the barriers' initialisation", "fence", DECODE_KERNEL,
           "    hw::fence_barrier_init();\n", ""),
    # Decode: barriers of the warps. The epilogue's race of TileOPs#1633, the loop's missing barrier of tilelang#2613.
    Mutant("decode: no barrier behind the queries", "sync", DECODE_CONSUMER,
           "void publish_queries() {\n    hw::fence_async_proxy();\n    sync_consumers();\n",
           "void publish_queries() {\n    hw::fence_async_proxy();\n"),
    Mutant("decode: no barrier behind the replaced rows", "sync", DECODE_CONSUMER,
           "    hw::fence_async_proxy();\n    sync_consumers();\n  }\n  TANDEM_DEVICE void wait_values",
           "    hw::fence_async_proxy();\n  }\n  TANDEM_DEVICE void wait_values"),
    Mutant("decode: column maxima exchanged without a barrier", "sync", SHARED_P,
           "  sync_consumers();\n  TANDEM_UNROLL\n  for (int k = 0; k < own; ++k) {\n    TANDEM_UNROLL",
           "  TANDEM_UNROLL\n  for (int k = 0; k < own; ++k) {\n    TANDEM_UNROLL"),
    Mutant("decode: no barrier between P and its product", "sync", SHARED_P,
           "    sync_consumers();\n\n    consumer.wait_values();", "    consumer.wait_values();"),
    Mutant("decode: warps' statistics combined without a barrier", "sync", REGISTER_P,
           "  sync_consumers();\n  float factor[own];", "  float factor[own];"),
    Mutant("decode: quarters of O overwritten while they are read", "sync", REGISTER_P,
           "    sync_consumers();\n  }\n}", "  }\n}"),
    Mutant("decode: output's rows stored before all warps have rounded them", "sync", PARTIALS,
           "  result.round_to(rounded);\n  sync_consumers();\n", "  result.round_to(rounded);\n"),
    # Decode: products
    Mutant("decode: scores not waited for", "wgmma", PLAIN, "    hw::wgmma_wait<0>();  // S.wait()\n", ""),
    Mutant("decode: O rescaled while the product adds to it", "wgmma", SHARED_P,
           "    hw::wgmma_wait<0>();\n    consumer.release_values();\n",
           "    result.scale(correction);\n    hw::wgmma_wait<0>();\n    consumer.release_values();\n"),
    Mutant("decode: P not transposed between its products", "descriptor", REGISTER_P,
           "hw::transpose_matrix(hw::pack<V.operand>(p[4 * j + 2 * i], p[4 * j + 2 * i + 1]))",
           "hw::pack<V.operand>(p[4 * j + 2 * i], p[4 * j + 2 * i + 1])"),
    Mutant("decode: V read as a K-major operand", "descriptor", SHARED_P, "tile.mn_major(step % steps)",
           "tile.k_major(step % steps)"),
    Mutant("decode: halves of the output rounded to one place", "index", TRANSPOSED, "store_transposed<V>(tile, 64 * m,",
           "store_transposed<V>(tile, 0,", 128),
    Mutant("decode: panels of V an atom apart", "descriptor", SHARED_P, "m * tile.panel_bytes", "m * tile::atom_bytes", 128),
    # Decode: the counter of arrivals
    Mutant("decode: no barrier before the arrival", "counter", PARTIALS,
           "  sync_consumers();\n  if (hw::thread_index() == 0) {", "  if (hw::thread_index() == 0) {"),
    Mutant("decode: no barrier after the arrival", "counter", PARTIALS,
           "  sync_consumers();\n  return consumer.shared", "  return consumer.shared"),
    Mutant("decode: counter not reset", "counter", PARTIALS, "      if (last) hw::store_global(counter, 0u);\n", ""),
    Mutant("decode: the last but one merges", "counter", PARTIALS, "hw::atomic_add(counter, 1u) + 1 ==",
           "hw::atomic_add(counter, 1u) + 2 =="),
    Mutant("decode: counted with a load and a store", "counter", PARTIALS,
           "last = hw::atomic_add(counter, 1u) + 1 == static_cast<std::uint32_t>(parts.blocks);",
           "const std::uint32_t n = hw::load_global(counter) + 1;\n      hw::store_global(counter, n);\n"
           "      last = n == static_cast<std::uint32_t>(parts.blocks);"),
    Mutant("decode: every split arrives", "counter", PARTIALS, "if (!more_here && arrive_last", "if (arrive_last"),
    # Decode: places and bounds
    Mutant("decode: one place for both ends of a share", "index", PARTIALS, "block == first_block ? first : 2 * block",
           "2 * block"),
    Mutant("decode: team's members share a place", "index", PARTIALS, "return unit * abreast + member;",
           "return unit * abreast;"),
    Mutant("decode: team's members share a counter", "index", PARTIALS, "first_team * abreast + member", "first_team * abreast"),
    Mutant("decode: long steps' streams in turn are the first ones again", "index", DECODE_WORK, "stream * abreast() + member_",
           "stream + member_", 128),
    Mutant("decode: a long step's places are those of others", "index", DECODE_WORK,
           "in_long_step() ? args_.long_teams.abreast.value() : args_.teams.abreast.value()", "args_.teams.abreast.value()", 128),
    Mutant("decode: a long step's positions count one stream of a sequence", "index", DECODE_WORK,
           "    if (in_long_step()) own_begin_ *= in_turn(), window_end_ *= in_turn();", "    if (false) own_begin_ *= in_turn();", 128),
    Mutant("decode: plans forget that a step is long", "index", DECODE_WORK, "return 2 * overhead_ + is_long_;", "return 2 * overhead_;", 128),
    Mutant("decode: merge begins with the block's own part", "index", PARTIALS, "parts.place(part)",
           "parts.place((part + static_cast<int>(hw::block_index())) % parts.parts)"),
    Mutant("decode: owner of the unit past the stream", "index", PARTIALS, "shares.owner(item.stream_end - 1)",
           "shares.owner(item.stream_end)"),
    Mutant("decode: owners' shares one unit too short", "index", STREAM_K, "(share_ + (longer ? 1 : 0))", "share_"),
    Mutant("decode: V's bytes arrive at K's barrier", "index", DECODE_PRODUCER, "producer.load(shared.v_ring,",
           "producer.load(shared.k_ring,"),
    Mutant("decode: page numbers past the length are used", "index", DECODE_PRODUCER,
           "if (pages_.table != nullptr && key < length_)", "if (pages_.table != nullptr)"),
    Mutant("decode: values past the length left as they are", "index", DECODE_CONSUMER, "        v = tile::Chunk{};\n", ""),
    Mutant("decode: one new token too many", "index", DECODE_CONSUMER, "if (own_key < item.keys) {", "if (own_key <= item.keys) {"),
    Mutant("decode: every row tile appends", "index", DECODE_CONSUMER, "if (item.row_tile != 0 || key >= item.end) return;",
           "if (key >= item.end) return;"),
    Mutant("decode: keys past the item's appended", "index", DECODE_CONSUMER,
           "if (item.row_tile != 0 || key >= item.end) return;", "if (item.row_tile != 0) return;"),
    Mutant("decode: mask one key too wide", "index", TRANSPOSED, "own_key < limits.end", "own_key <= limits.end"),
    Mutant("decode: plain mask one key too wide", "index", PLAIN, "k >= end", "k > end"),
]
