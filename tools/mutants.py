# SPDX-License-Identifier: Apache-2.0
"""The table of mutants: one wait, fence, barrier, phase, count, index, swizzle or descriptor field changed each.

Told by construct (tools/mutation/located.py): where, a function; and what of it, the nth call of a verb or a few tokens.
"""

import dataclasses

from mutation import located
from mutation.located import Before, Edit, Remove, Swap

DECODE_ONLY = ("src/decode/", "src/core/stream_k.h")


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    kind: str
    where: str
    change: Before | Edit | Remove | Swap
    head_dim: int = 64  # whose kernels show it

    @property
    def file(self):
        """Where the place is, from the root of the repository; raises located.Stale if it is no more."""
        return located.At(self.where).find()[0]

    @property
    def kernel(self):
        """Whose tests show it: the forward kernels' where both include the file."""
        if self.file.startswith("src/quantize/"):
            return "quantize"
        return "decode" if self.file.startswith(DECODE_ONLY) else "forward"

    def text(self):
        """The file's text, changed."""
        return located.change(self.where, self.change)[1]


MUTANTS = [
    # Waits on barriers
    Mutant("no wait for a full stage", "wait", "consumer_wait", Remove("barrier_wait")),
    Mutant("no wait for an empty stage", "wait", "producer_acquire", Remove("barrier_wait")),
    Mutant("only one lane waits for a full stage", "wait", "consumer_wait",
           Before("barrier_wait", 1, "if (hw::lane_index() == 0)")),
    Mutant("serial: no wait for K", "wait", "serial_blocks", Remove("consumer_wait")),
    Mutant("serial: no wait for V", "wait", "serial_blocks", Remove("consumer_wait", 2)),
    Mutant("two-stage: no wait for V in the loop", "wait", "two_stage_blocks", Remove("consumer_wait", 2)),
    Mutant("two-stage: no wait for the last V", "wait", "finish_tile", Remove("consumer_wait")),
    Mutant("no wait for the queries", "wait", "forward/consume", Remove("consumer_wait")),
    # Phases
    Mutant("parity never flips", "phase", "PipelineState::advance", Edit("parity ^= stage == 0 ? 1u : 0u", "")),
    Mutant("parity flips at every stage", "phase", "PipelineState::advance", Edit("stage == 0 ? 1u : 0u", "1u")),
    Mutant("producer waits for the consumer's parity", "phase", "producer_acquire", Edit("at.parity ^ 1u", "at.parity")),
    Mutant("consumer waits for the other parity", "phase", "consumer_wait", Edit("at.parity", "at.parity ^ 1u")),
    Mutant("positions begin in parity 1", "phase", "PipelineState", Edit("parity = 0", "parity = 1")),
    # Arrivals and bytes
    Mutant("stages are never released", "arrival", "consumer_release", Remove("barrier_arrive")),
    Mutant("every lane releases the stage", "arrival", "consumer_release", Edit("if (hw::lane_index() == 0)", "")),
    Mutant("full barrier counts 2 arrivals", "arrival", "Pipeline::init", Edit("full[i], fills", "full[i], fills + 1")),
    Mutant("empty barrier counts one arrival too few", "arrival", "Pipeline::init", Edit("releases", "releases - 1")),
    Mutant("empty barrier counts one arrival too many", "arrival", "Pipeline::init", Edit("releases", "releases + 1")),
    Mutant("one consumer's releases free K", "arrival", "init_pipelines", Edit("consumer_warps", "warps", 2)),
    Mutant("one consumer's releases free V", "arrival", "init_pipelines", Edit("consumer_warps", "warps", 3)),
    Mutant("arrival without bytes", "bytes", "producer_acquire",
           Edit("barrier_arrive_expecting(pipeline.full[at.stage], bytes", "barrier_arrive(pipeline.full[at.stage]")),
    Mutant("half of the bytes expected", "bytes", "producer_acquire", Edit("bytes", "bytes / 2")),
    Mutant("16 bytes too many expected", "bytes", "producer_acquire", Edit("bytes", "bytes + 16")),
    Mutant("bytes of one panel expected of two", "bytes", "shared_tile/bytes", Edit("panels *", ""), 128),
    # Slots released early, late, or the wrong one
    Mutant("serial: K released before its product is waited for", "release", "serial_blocks",
           Swap(("wgmma_wait", 1), ("consumer_release", 1))),
    Mutant("two-stage: V released before its product is waited for", "release", "two_stage_blocks",
           Before("wgmma_wait", 2, "tile::consumer_release(shared.v_pipeline, v_at);")),
    Mutant("two-stage: K released twice in place of V", "release", "two_stage_blocks",
           Edit("consumer_release(shared.v_pipeline, v_at)", "consumer_release(shared.k_pipeline, k_at)")),
    Mutant("two-stage: last V never released", "release", "finish_tile", Remove("consumer_release"), 256),
    Mutant("queries released before the last scores", "release", "serial_blocks", Edit("j + 1", "j + 2")),
    Mutant("queries' position never advances", "phase", "release_queries", Remove("advance")),
    Mutant("no warp barrier before the release of queries that meet no key", "sync", "forward/consume", Remove("sync_warp")),
    # WGMMA waits and fences
    Mutant("serial: scores not waited for", "wgmma", "serial_blocks", Remove("wgmma_wait")),
    Mutant("two-stage: scores waited for with one group too many pending", "wgmma", "two_stage_blocks",
           Edit("wgmma_wait<1>", "wgmma_wait<2>")),
    Mutant("two-stage: output not waited for in the loop", "wgmma", "two_stage_blocks", Remove("wgmma_wait", 2)),
    Mutant("two-stage: wait leaves the output pending", "wgmma", "two_stage_blocks", Edit("wgmma_wait<0>", "wgmma_wait<1>")),
    Mutant("two-stage: last output not waited for", "wgmma", "finish_tile", Remove("wgmma_wait")),
    Mutant("three-stage: products not waited for", "wgmma", "three_stage_blocks", Remove("wgmma_wait")),
    Mutant("no fence before the scores", "fence", "consumer/start_scores", Remove("wgmma_fence")),
    Mutant("no fence before the output", "fence", "consumer/start_output", Remove("wgmma_fence")),
    Mutant("scores not committed", "wgmma", "consumer/start_scores", Remove("wgmma_commit")),
    Mutant("output not committed", "wgmma", "consumer/start_output", Remove("wgmma_commit")),
    Mutant("two-stage: probabilities rounded while a product reads them", "wgmma", "two_stage_blocks",
           Before("wgmma_wait", 2, "tile::round_probabilities<V.operand>(p, scores);")),
    Mutant("two-stage: output rescaled while a product writes it", "wgmma", "two_stage_blocks",
           Before("wgmma_wait", 2, "tile::scale_rows(state.output, {1.f, 1.f});")),
    # From tile to tile
    Mutant("next tile: no wait for its queries", "wait", "pass_to_next_tile", Remove("consumer_wait")),
    Mutant("next tile: no wait for its first K", "wait", "pass_to_next_tile", Remove("consumer_wait", 2)),
    Mutant("next tile: no wait for the old one's last V", "wait", "pass_to_next_tile", Remove("consumer_wait", 3)),
    Mutant("next tile: its scores not waited for", "wgmma", "pass_to_next_tile", Remove("wgmma_wait")),
    Mutant("next tile: the old output stored before it is complete", "wgmma", "pass_to_next_tile", Remove("wgmma_wait", 2)),
    Mutant("next tile: the old one's V never released", "arrival", "pass_to_next_tile", Remove("consumer_release", 2)),
    Mutant("next tile: begins with the old output", "index", "pass_to_next_tile", Remove("clear_output")),
    Mutant("next tile: the old one stored with the new one's sums", "index", "pass_to_next_tile",
           Edit("finished)", "state.softmax)")),
    Mutant("two-stage: queries released a block early", "release", "release_queries_after",
           Edit("position + 1", "position + 2")),
    Mutant("no wait for the grid ahead", "wait", "forward_kernel", Remove("wait_for_prior_grid")),
    # The output that leaves by TMA
    Mutant("staged output: written while the store before reads it", "wait", "start_storing_output",
           Remove("wait_stores_read")),
    Mutant("staged output: no proxy fence before the store", "fence", "start_storing_output", Remove("fence_async_proxy")),
    Mutant("staged output: stored before all lanes have written it", "sync", "start_storing_output", Remove("sync_warp", 2)),
    Mutant("staged output: the warp ends before its store has read", "wait", "finish_storing_output",
           Remove("wait_stores_read")),
    Mutant("staged output: never committed", "arrival", "start_storing_output", Remove("commit_stores")),
    # Heads of a group in one tile
    Mutant("packed heads: every row is the pack's first head", "index", "Packing::head",
           Edit("(pack << log2_heads) + (row & (heads() - 1))", "pack << log2_heads")),
    Mutant("packed heads: a row's number is its query", "index", "Packing::query", Edit(">> log2_heads", "")),
    Mutant("packed heads: a pack's number is its first head", "index", "Packing::head",
           Edit("(pack << log2_heads)", "pack")),
    Mutant("packed heads: boxes begin where plain ones would", "index", "box_of_rows",
           Edit("if (args.packing.heads() > 1) return {0, head, query, queries.q_batch};", "")),
    Mutant("packed heads: rows see the keys of plain ones", "index", "RowLimits::of",
           Edit("args.packing.query(row + 8 * i)", "row + 8 * i")),
    Mutant("packed heads: the loop begins at a plain tile's keys", "index", "blocks_of_rows",
           Edit("args.packing.query(row)", "row")),
    # Consumers with loops of their own
    Mutant("own loops: keys that are skipped are not waited for", "wait", "skip_keys", Remove("consumer_wait"), 256),
    Mutant("own loops: values that are skipped are not waited for", "wait", "skip_values", Remove("consumer_wait"), 256),
    Mutant("own loops: keys that are skipped are not given back", "arrival", "skip_keys", Remove("consumer_release")),
    Mutant("own loops: values that are skipped are not given back", "arrival", "skip_values", Remove("consumer_release")),
    Mutant("own loops: keys given back before all lanes have left the wait", "sync", "skip_keys",
           Remove("sync_warp"), 256),
    Mutant("own loops: a block that is skipped takes no turn", "arrival", "skip_keys",
           Edit("state.pingpong.take(); state.pingpong.pass();", "")),
    Mutant("own loops: nothing is skipped before a tile", "index", "forward/consume", Remove("skip_blocks")),
    Mutant("own loops: nothing is skipped behind a tile", "index", "attend_two_stage", Remove("skip_blocks"), 256),
    Mutant("own loops: tiles follow however much is skipped", "wait", "can_follow",
           Edit("(!V.decisions.loops_apart || work.aside.after + next.aside.before <= 1)", "true"), 96),
    Mutant("own loops: blocks aside counted from the tile's other end", "index", "mask/aside",
           Edit("lower, upper} : BlocksAside{upper, lower", "upper, lower} : BlocksAside{lower, upper")),
    # Order and reference
    Mutant("maxima of negative scores as bits say", "index", "OnlineSoftmax::update_row_max",
           Edit("if (!hw::any_lane(row_max[0] < 0.f || row_max[1] < 0.f))", ""), 256),
    Mutant("the loop's masked blocks are those of the other direction", "index", "mask/loop_over",
           Edit("end - full_end, end - full_begin", "full_begin - begin, full_end - begin")),
    # Initialisation
    Mutant("no fence after the barriers' initialisation", "fence", "init_pipelines", Remove("fence_barrier_init")),
    Mutant("no block barrier after the initialisation", "sync", "init_pipelines", Remove("sync_block")),
    Mutant("queries' pipelines are not initialised", "sync", "init_pipelines", Remove("init")),
    # Slots and places
    Mutant("K copied to the other stage", "index", "load_k", Edit("k_at.stage", "k_at.stage ^ 1")),
    Mutant("V's bytes arrive at K's barrier", "index", "load_v", Edit("shared.v_pipeline.full", "shared.k_pipeline.full")),
    Mutant("scores of the other stage", "index", "consumer/start_scores", Edit("k.stage", "k.stage ^ 1")),
    Mutant("output from the first stage always", "index", "consumer/start_output", Edit("state.at.v.stage", "0")),
    Mutant("consumers read one consumer's queries", "index", "consumer/start_scores", Edit("state.pingpong.consumer", "0")),
    Mutant("pipeline wraps one stage late", "index", "PipelineState::advance", Edit("stage + 1 == stages", "stage == stages")),
    Mutant("V of the block before", "index", "Producer::values", Edit("keys(work, i)", "keys(work, i - 1)")),
    # Descriptors and swizzles
    Mutant("operand without swizzle", "descriptor", "make", Edit("swizzle", "0")),
    Mutant("operand with the 64-byte swizzle", "descriptor", "make",
           Edit("static_cast<std::uint64_t>(swizzle)", "std::uint64_t{2}")),
    Mutant("atoms of 4 rows", "descriptor", "atom_bytes", Edit("row_bytes", "row_bytes / 2")),
    Mutant("leading and stride offsets exchanged", "descriptor", "make",
           Edit("leading_bytes) << 16 | field(stride_bytes", "stride_bytes) << 16 | field(leading_bytes")),
    Mutant("panels of MN-major operands one row apart", "descriptor", "mn_major", Edit("panel_bytes", "row_bytes"), 128),
    Mutant("K steps of 8 elements", "descriptor", "k_major", Edit("k_step * 2", "k_step")),
    Mutant("K-major panels ignored", "descriptor", "k_major", Edit("/ steps_per_panel) * panel_bytes + (step", ""), 128),
    Mutant("MN-major steps of 8 rows", "descriptor", "mn_major", Edit("k_step", "k_step / 2")),
    Mutant("all panels copied to the first", "descriptor", "load_tile", Edit("panel[p]", "panel[0]"), 128),
    Mutant("scores accumulate on what was there", "wgmma", "gemm/issue_scores", Edit("overwrite", "add")),
    # Turns and registers
    Mutant("the first turn is never passed", "turn", "tile/Turns::init", Remove("arrive_named")),
    Mutant("turns count one warpgroup", "turn", "tile/Turns", Edit("2 *", "")),
    Mutant("turns are never passed on", "turn", "forward/pingpong/pass",
           Edit("this->consumer + 1 == V.consumers() ? 0 : this->consumer + 1", "this->consumer")),
    Mutant("consumers take more registers than there are", "registers", "consumer_registers", Edit("160", "168")),
    Mutant("the producer keeps its registers", "registers", "forward_kernel", Remove("producer_registers")),
    Mutant("half of the warp elects itself", "divergence", "forward_kernel",
           Edit("elect_one", "lane_index() < 16 && hw::elect_one")),
    # Decode: waits
    Mutant("decode: no wait for K", "wait", "wait_keys", Remove("consumer_wait")),
    Mutant("decode: no wait for V", "wait", "wait_values", Remove("consumer_wait")),
    Mutant("decode: rows of V replaced before it is waited for", "wait", "wait_keys", Remove("consumer_wait", 2)),
    Mutant("decode: producer does not wait for an empty stage", "wait", "Producer::load", Remove("barrier_wait")),
    Mutant("decode: the last lane's wait only", "wait", "wait_keys", Before("consumer_wait", 1, "if (hw::lane_index() == 31)")),
    # The wait of flash-attention#2481.
    Mutant("decode: no wait for the grid before", "wait", "decode_kernel", Remove("wait_for_prior_grid")),
    # Decode: arrivals, stages released early or by too few
    Mutant("decode: every lane announces the bytes", "arrival", "Producer::load", Edit("if (hw::lane_index() == 0)", "")),
    Mutant("decode: one warp's release frees K", "arrival", "decode_kernel", Edit("k_pipeline.init(warps)", "k_pipeline.init(1)")),
    Mutant("decode: K released before its product is waited for", "release", "attend_shared_p",
           Swap(("wgmma_wait", 1), ("release_keys", 1))),
    Mutant("decode: V released before its product is waited for", "release", "attend_plain",
           Swap(("wgmma_wait", 2), ("release_values", 1))),
    Mutant("decode: no warp barrier before the release of V", "sync", "attend_register_p", Remove("sync_warp", 2)),
    # Decode: fences. What FlashKDA#24 (proxy, barriers' initialisation) and tilelang#2634 (before WGMMA) lacked.
    Mutant("decode: no proxy fence after the queries", "fence", "publish_queries", Remove("fence_async_proxy")),
    Mutant("decode: no proxy fence after the replaced rows", "fence", "wait_keys", Remove("fence_async_proxy")),
    Mutant("decode: no proxy fence after P", "fence", "attend_shared_p", Remove("fence_async_proxy")),
    Mutant("decode: no fence before the scores", "fence", "transposed/start_scores", Remove("wgmma_fence")),
    Mutant("decode: no fence before the output", "fence", "shared_p/start_output", Remove("wgmma_fence")),
    Mutant("decode: no fence after the barriers' initialisation", "fence", "decode_kernel", Remove("fence_barrier_init")),
    # Decode: barriers of the warps. The epilogue's race of TileOPs#1633, the loop's missing barrier of tilelang#2613.
    Mutant("decode: no barrier behind the queries", "sync", "publish_queries", Remove("sync_consumers")),
    Mutant("decode: no barrier behind the replaced rows", "sync", "wait_keys", Remove("sync_consumers")),
    Mutant("decode: column maxima exchanged without a barrier", "sync", "exchange_maxima", Remove("sync_consumers")),
    Mutant("decode: no barrier between P and its product", "sync", "attend_shared_p", Remove("sync_consumers")),
    Mutant("decode: warps' statistics combined without a barrier", "sync", "combine_warps", Remove("sync_consumers")),
    Mutant("decode: quarters of O overwritten while they are read", "sync", "combine_warps", Remove("sync_consumers", 3)),
    Mutant("decode: output's rows stored before all warps have rounded them", "sync", "store_final",
           Remove("sync_consumers")),
    # Decode: products
    Mutant("decode: scores not waited for", "wgmma", "attend_plain", Remove("wgmma_wait")),
    Mutant("decode: O rescaled while the product adds to it", "wgmma", "attend_shared_p",
           Before("wgmma_wait", 2, "result.scale(correction);")),
    Mutant("decode: P not transposed between its products", "descriptor", "make_fragments",
           Edit("hw::transpose_matrix", "")),
    Mutant("decode: V read as a K-major operand", "descriptor", "shared_p/start_output", Edit("mn_major", "k_major")),
    Mutant("decode: halves of the output rounded to one place", "index", "TransposedResult::round_to",
           Edit("64 * m", "0"), 128),
    Mutant("decode: panels of V an atom apart", "descriptor", "shared_p/start_output",
           Edit("tile.panel_bytes", "tile::atom_bytes"), 128),
    # Decode: the counter of arrivals
    Mutant("decode: no barrier before the arrival", "counter", "arrive_last", Remove("sync_consumers")),
    Mutant("decode: no barrier after the arrival", "counter", "arrive_last", Remove("sync_consumers", 2)),
    Mutant("decode: counter not reset", "counter", "arrive_last", Remove("store_global")),
    Mutant("decode: the last but one merges", "counter", "arrive_last", Edit("+ 1 ==", "+ 2 ==")),
    Mutant("decode: counted with a load and a store", "counter", "arrive_last",
           Edit("last = hw::atomic_add(counter, 1u) + 1", "const std::uint32_t n = hw::load_global(counter) + 1; hw::store_global(counter, n); last = n")),
    Mutant("decode: every split arrives", "counter", "finish_work", Edit("!more_here &&", "")),
    # Decode: places and bounds
    Mutant("decode: one place for both ends of a share", "index", "parts_of", Edit("block == first_block ? first :", "")),
    Mutant("decode: team's members share a place", "index", "parts_of", Edit("unit * team_blocks + member", "unit * team_blocks")),
    Mutant("decode: team's members share a counter", "index", "parts_of",
           Edit("first_team * team_blocks + member", "first_team * team_blocks")),
    Mutant("decode: long steps' streams in turn are the first ones again", "index", "SplitScheduler::take",
           Edit("* team_blocks()", ""), 128),
    Mutant("decode: a long step's places are those of others", "index", "SplitScheduler::team_blocks",
           Edit("in_long_step() ? args_.long_teams.team_blocks.value() :", ""), 128),
    Mutant("decode: a long step's positions count one stream of a sequence", "index", "count_positions",
           Edit("in_long_step()) own_begin_ *= streams_per_block(), window_end_", "false) own_begin_"), 128),
    Mutant("decode: plans forget that a step is long", "index", "SplitScheduler::flags", Edit("+ is_long_", ""), 128),
    Mutant("decode: merge begins with the block's own part", "index", "partial",
           Edit("part", "(part + static_cast<int>(hw::block_index())) % parts.parts")),
    Mutant("decode: owner of the unit past the stream", "index", "parts_of", Edit("stream_end - 1", "stream_end")),
    Mutant("decode: owners' shares one unit too short", "index", "owner", Edit("(share_ + (longer ? 1 : 0))", "share_")),
    Mutant("decode: V's bytes arrive at K's barrier", "index", "decode/produce", Edit("v_pipeline", "k_pipeline")),
    Mutant("decode: page numbers past the length are used", "index", "decode/producer/fetch", Edit("&& key < length_", "")),
    Mutant("decode: values past the length left as they are", "index", "replace_rows", Edit("v = tile::Chunk{};", "")),
    Mutant("decode: one new token too many", "index", "replace_rows", Edit("own_key < work.keys", "own_key <= work.keys")),
    Mutant("decode: every row tile appends", "index", "append", Edit("work.row_tile != 0 || ", "")),
    Mutant("decode: keys past the work's appended", "index", "append", Edit(" || key >= work.end", "")),
    Mutant("decode: mask one key too wide", "index", "mask_and_reduce",
           Edit("own_key < limits.end", "own_key <= limits.end")),
    Mutant("decode: plain mask one key too wide", "index", "softmax_rows", Edit("k >= end", "k > end")),
    # 8 bits: probabilities as codes, and their sums
    Mutant("8 bits: the top code is that of half as much again", "codes", "make_codes", Edit("offset_of_codes", "59.54f")),
    Mutant("8 bits: codes of the lower row by the upper one's unit", "codes", "make_codes", Edit("unit[i]", "unit[0]")),
    Mutant("8 bits: codes in steps of a seventh octave", "codes", "make_codes", Edit("codes_per_octave * unit", "7 * unit")),
    Mutant("8 bits: maxima of negative rows by their bits", "codes", "block_softmax/update_row_max",
           Edit("if (!hw::any_lane(row_max[0] < 0.f || row_max[1] < 0.f)) return", "return")),
    Mutant("8 bits: maxima of two lanes only", "codes", "quad_max_or_nan", Edit("hw::shuffle_xor(x, 2)", "x")),
    Mutant("8 bits: sums of all columns are summed again", "codes", "block_softmax/finish", Edit("if (!codes)", "")),
    Mutant("8 bits: both rows have the upper one's sum", "codes", "add_sums", Edit("lower, row_sum[1]", "upper, row_sum[1]")),
    Mutant("8 bits: sums count blocks alike", "codes", "add_sums", Edit("share[0], upper", "1.f, upper")),
    Mutant("8 bits: no ones in the last stage", "codes", "write_ones", Edit("V.kv_stages * V", "(V.kv_stages - 1) * V")),
    Mutant("8 bits: ones of half as much", "codes", "ones_of_e4m3", Edit("0x38383838", "0x30303030")),
    Mutant("8 bits: no proxy fence after the ones", "codes", "init_pipelines", Remove("fence_async_proxy")),
    Mutant("8 bits: ones are expected from TMA", "codes", "load_8_bit_v", Edit("- bytes_of_ones", "")),
    Mutant("8 bits: P's registers in another order than keys are", "codes", "quantise_probabilities",
           Edit("8 * (r / 2) + 2 * (r % 2)", "8 * (r % 2) + 2 * (r / 2)")),
    # 8 bits: blocks and their weights
    Mutant("8 bits: values' scales forgotten", "weights", "block_softmax/exponentiate",
           Edit("share[i] * value_scale", "share[i]")),
    Mutant("8 bits: blocks without keys have a weight", "weights", "block_softmax/exponentiate",
           Edit("none ? 0.f : hw::exp2(anchor[i] - offset[i])", "hw::exp2(anchor[i] - offset[i])")),
    Mutant("8 bits: the anchor never moves", "weights", "block_softmax/exponentiate",
           Edit("move_anchor(offset, output)", "")),
    Mutant("8 bits: the anchor moves without the output", "weights", "move_anchor", Remove("scale_rows")),
    Mutant("8 bits: the anchor moves without the sums", "weights", "move_anchor", Edit("row_sum[i] *= factor[i]", "")),
    Mutant("8 bits: both rows' products have the upper one's weight", "weights", "block_softmax/add",
           Edit("weight[row_of_accumulator(j)]", "weight[0]")),
    Mutant("8 bits: a block's product adds to the one before", "weights", "start_product",
           Edit("step == 0 ? hw::Accumulate::overwrite : hw::Accumulate::add", "hw::Accumulate::add")),
    Mutant("8 bits: the old tile's last block has the new one's weight", "weights", "pass_to_next_tile",
           Edit("p, finished", "p, state.softmax")),
    Mutant("8 bits: products are added before they are complete", "weights", "finish_columns", Remove("wgmma_wait"), 256),
    Mutant("8 bits: every product has the first columns", "weights", "start_columns", Edit("(products<V> - 1 - number) * columns", "0"), 256),
    # 8 bits: scales
    Mutant("8 bits: scales of the neighbouring block", "scales", "forward/eight_bit/scale_of",
           Edit("divide(token)", "divide(token + 128)")),
    Mutant("8 bits: scales of the query head for keys", "scales", "EightBitState::begin",
           Edit("args.group.divide(work.tile.head).quotient", "work.tile.head")),
    Mutant("8 bits: one query's scale for both rows", "scales", "EightBitState::begin", Edit("row + 8 * i", "row")),
    Mutant("8 bits: scales of queries that do not exist", "scales", "EightBitState::begin",
           Edit("query < last ? query : last", "query")),
    Mutant("8 bits: keys' scales for values", "scales", "EightBitState::take_scales",
           Edit("kept ? values_of_head", "kept ? keys_of_head")),
    Mutant("8 bits: scales by the position in the loop", "scales", "consumer/take_scales",
           Edit("state.loop.block(position)", "position")),
    Mutant("8 bits: scores without their keys' scale", "scales", "score_unit", Edit("* state.eight_bit.key_scale", "")),
    # 8 bits: V transposed in the kernel
    Mutant("8 bits: no proxy fence after the transposition", "transposer", "transposer/transpose",
           Remove("fence_async_proxy")),
    Mutant("8 bits: V^T overwritten while products read it", "transposer", "transposer/transpose", Remove("barrier_wait")),
    Mutant("8 bits: even columns twice", "transposer", "transpose_block", Edit("0x7531", "0x6420")),
    Mutant("8 bits: columns stored in pairs", "transposer", "transpose_block", Edit("+ matrix % 2", "")),
    # The quantiser
    Mutant("quantise: no barrier before the largest magnitude", "quantise", "Rows::largest", Remove("sync_block")),
    Mutant("quantise: no barrier before columns go out", "quantise", "store_columns", Remove("sync_block")),
    Mutant("quantise: what stands behind the last token", "quantise", "Rows::load", Edit("at < args.length", "true")),
    Mutant("quantise: signs of the first columns for all", "quantise", "Rows::rotate", Edit("args.signs[column() / 32]", "args.signs[0]")),
    Mutant("quantise: butterflies without the last lanes", "quantise", "Rows::rotate",
           Edit("distance < V.lanes()", "distance < V.lanes() / 2")),
    Mutant("quantise: rows behind the last one are written", "quantise", "store_rows", Edit("if (at < args.length)", "")),
    Mutant("quantise: columns' tails are left as they were", "quantise", "store_columns",
           Edit("at < args.padded", "at < args.length - args.length % 16")),
]
