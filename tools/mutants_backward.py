"""The backward's part of the table of mutants (tools/mutants.py)."""

import dataclasses

HANDOVER = "src/tile/handover.h"
RING = "src/tile/ring.h"
STATISTICS = "src/backward/statistics.h"
SUMS = "src/backward/sums.h"
WORK = "src/backward/work.h"
PRODUCER = "src/backward/keys_producer.h"
GRADIENTS = "src/backward/gradients.h"
CONSUMER = "src/backward/keys_consumer.h"
SERIAL = "src/backward/keys_serial.h"
PIPELINED = "src/backward/keys_pipelined.h"
KERNEL = "src/backward/keys_kernel.h"
ROLES = "src/backward/roles_kernel.h"
QUERIES = "src/backward/queries_kernel.h"
PREPARE = "src/backward/prepare.h"
PLAN = "src/backward/plan.cpp"


@dataclasses.dataclass(frozen=True)
class Change:
    name: str
    kind: str
    file: str
    old: str
    new: str
    head_dim: int = 64


CHANGES = [
    # Handovers between warps
    Change("handover: no wait for a filled slot", "wait", HANDOVER, "    hw::barrier_wait(filled[at.slot], at.parity);\n", ""),
    Change("handover: no wait for an emptied slot", "wait", HANDOVER,
           "    hw::barrier_wait(emptied[at.slot], at.parity ^ 1u);\n", ""),
    Change("handover: a slot is waited for in the other phase", "phase", HANDOVER, "at.parity ^ 1u", "at.parity"),
    Change("handover: no proxy fence behind the stores", "fence", HANDOVER, "    hw::fence_async_proxy();\n", ""),
    Change("handover: filled before all lanes have stored", "sync", HANDOVER,
           "    hw::sync_warp();\n    if (hw::lane_index() == 0) hw::barrier_arrive(filled[at.slot]);",
           "    if (hw::lane_index() == 0) hw::barrier_arrive(filled[at.slot]);"),
    Change("handover: released before all lanes have read", "sync", HANDOVER,
           "    hw::sync_warp();\n    if (hw::lane_index() == 0) hw::barrier_arrive(emptied[at.slot]);",
           "    if (hw::lane_index() == 0) hw::barrier_arrive(emptied[at.slot]);", 192),
    Change("a position by number takes every use for its slot's first", "phase", RING,
           "static_cast<std::uint32_t>(use) / stages % 2u", "0u"),
    # dS and dQ on their way
    Change("dS of one consumer alone is waited for", "arrival", KERNEL,
           "shared.dq.ds_ring.init(consumer_warps, consumer_warps);", "shared.dq.ds_ring.init(warps, consumer_warps);"),
    Change("one consumer's release frees dS", "arrival", KERNEL,
           "shared.dq.ds_ring.init(consumer_warps, consumer_warps);", "shared.dq.ds_ring.init(consumer_warps, warps);"),
    Change("a part of dQ is handed over by one warp", "arrival", KERNEL, "ring.init(warps, 1);", "ring.init(1, 1);"),
    Change("pipelined: dS released before its product is waited for", "release", PIPELINED,
           "    hw::wgmma_wait<1>();\n    shared.dq.ds_ring.release(ds_at<V>(step));\n",
           "    shared.dq.ds_ring.release(ds_at<V>(step));\n    hw::wgmma_wait<1>();\n"),
    Change("pipelined: dQ handed over before its product is waited for", "wait", PIPELINED,
           "    hw::wgmma_wait<1>();\n    shared.dq.ds_ring.release", "    shared.dq.ds_ring.release"),
    Change("pipelined: the block's own dS in place of the one before", "index", PIPELINED,
           "start_dq(state, step, dq);", "start_dq(state, number_of_first_ds + step, dq);"),
    Change("pipelined: the zeros before the first block count as a part", "index", PIPELINED,
           "if (step > 0) hand_over_dq(state, step - 1, dq);", "hand_over_dq(state, step, dq);"),
    Change("pipelined: no dQ of the last block", "index", PIPELINED,
           "  if constexpr (adds_dq<V>) finish_dq(state);\n", ""),
    Change("serial: dS released before its product is waited for", "release", SERIAL,
           "  hw::wgmma_wait<0>();\n  shared.dq.ds_ring.release(ds_at<V>(state.step));\n",
           "  shared.dq.ds_ring.release(ds_at<V>(state.step));\n  hw::wgmma_wait<0>();\n"),
    Change("the writer does not wait for a part", "wait", PRODUCER, "    ring.wait_filled(at);  // line 32\n", ""),
    Change("the writer frees a part that its add still reads", "wait", PRODUCER, "    hw::wait_stores_read<0>();\n", ""),
    Change("the writer never frees a part", "arrival", PRODUCER, "    hw::barrier_arrive(ring.emptied[0]);\n", ""),
    Change("the writer stores parts in place of adding them", "index", PRODUCER, "hw::reduce_add_box(", "hw::store_box("),
    Change("both consumers' parts go to the first's place", "index", PRODUCER,
           "consumer % row_blocks_a_block;", "0;"),
    Change("parts of other heads go to the first's place", "index", PRODUCER,
           "part_number(batch * extent.q_heads + head,", "part_number(batch * extent.q_heads,"),
    Change("wrong half of K in dQ", "descriptor", CONSUMER,
           "state.shared.k[step / steps_of_tile].mn_major(step % steps_of_tile, panel)",
           "state.shared.k[0].mn_major(step % steps_of_tile, panel)"),
    Change("dQ of the other consumer's queries", "descriptor", CONSUMER, "mn_major(step, row_block)", "mn_major(step, 1 - row_block)"),
    Change("dS stored over the other consumer's rows", "index", CONSUMER,
           "tile::warpgroup_rows * state.consumer + 16 * static_cast<int>(hw::warp_index() % 4);",
           "16 * static_cast<int>(hw::warp_index() % 4);"),
    Change("dQ accumulates from block to block", "wgmma", CONSUMER,
           "step == 0 ? hw::Accumulate::overwrite : hw::Accumulate::add", "hw::Accumulate::add"),
    # Slots of Q and dO
    Change("pipelined: dO released before its product is waited for", "release", PIPELINED,
           "  hw::wgmma_wait<1>();\n  release_dout(state);\n", "  release_dout(state);\n  hw::wgmma_wait<1>();\n"),
    Change("pipelined: Q released before its product is waited for", "release", PIPELINED,
           "  hw::wgmma_wait<adds_dq<V> ? 1 : 0>();\n  release_q(state);\n",
           "  release_q(state);\n  hw::wgmma_wait<adds_dq<V> ? 1 : 0>();\n"),
    Change("pipelined: no wait for the next Q", "wait", PIPELINED,
           "    tile::wait_full(shared.q_ring, state.q_at());  // line 19 of the next block\n", ""),
    Change("pipelined: no wait for dO", "wait", PIPELINED,
           "    tile::wait_full(shared.dout_ring, state.dout_at());  // lines 22, 20 (D)\n", ""),
    Change("serial: no wait for dO", "wait", SERIAL,
           "  tile::wait_full(shared.dout_ring, state.dout_at());  // lines 22, 20 (D)\n", ""),
    Change("dO released before all lanes have read D", "sync", CONSUMER,
           "  hw::sync_warp();  // lanes have read statistics that came with it\n", ""),
    Change("statistics are not counted among the bytes", "bytes", PRODUCER,
           "QueryTile::bytes + slots[0].bytes);", "QueryTile::bytes);"),
    Change("the group's second head reads the first's queries", "index", PRODUCER,
           "const hw::BoxOrigin origin{0, block * V.block_m, head, work.batch};",
           "const hw::BoxOrigin origin{0, block * V.block_m, work.kv_head * args.group.value(), work.batch};"),
    # Products and waits
    Change("pipelined: scores read before their product is waited for", "wgmma", PIPELINED,
           "  hw::wgmma_wait<0>();  // here,", "  // here,"),
    Change("pipelined: dP read before its product is waited for", "wgmma", PIPELINED,
           "    hw::wgmma_wait<rounds_early<V> && !V.softcap ? 1 : 0>();\n", ""),
    Change("serial: P changed before dV is waited for", "wgmma", SERIAL,
           "  start_dk(state, ds);  // line 27\n  hw::wgmma_wait<0>();\n", "  start_dk(state, ds);  // line 27\n"),
    Change("no wgmma_fence before dK", "fence", CONSUMER,
           "  hw::wgmma_fence();\n  tile::start_output<V.operand>(state.dk,", "  tile::start_output<V.operand>(state.dk,"),
    Change("dK takes dO for Q", "descriptor", CONSUMER,
           "tile::start_output<V.operand>(state.dk, ds, state.shared.q[state.q_at().slot]);",
           "tile::start_output<V.operand>(state.dk, ds, state.shared.dout[state.q_at().slot]);"),
    # P, dS and the mask
    Change("hidden pairs have P", "index", GRADIENTS, "            scores[j] = 0.f;\n", "            ;\n"),
    Change("keys behind the last one are seen", "index", GRADIENTS,
           "limits.end[i] = own < extent.k_len ? queries.end : queries.begin;", "limits.end[i] = queries.end;"),
    Change("a key's last query is hidden", "index", GRADIENTS, "own < end[row];", "own + 1 < end[row];"),
    Change("the last tile's blocks count as full", "index", WORK,
           "  if (past > extent.k_len) blocks.full_begin = blocks.full_end = blocks.end;\n", ""),
    Change("D is added", "index", GRADIENTS, "probabilities[j] * (dp[j] - d.of(j))", "probabilities[j] * (dp[j] + d.of(j))"),
    Change("statistics of two queries exchanged", "index", STATISTICS, "query % 8 / 2 * 4 + query / 8 * 2 + query % 2",
           "query % 8 / 2 * 4 + query % 2 * 2 + query / 8"),
    Change("dK without scale", "index", KERNEL, "args.extent.head_dim, args.scale, state.dk", "args.extent.head_dim, 1.f, state.dk"),
    Change("dV with scale", "index", KERNEL, "args.extent.head_dim, 1.f, state.dv", "args.extent.head_dim, args.scale, state.dv"),
    Change("cap: dS without its factor", "index", GRADIENTS, "factor[c] = hw::fma(-t, t, 1.f);", "factor[c] = 1.f;"),
    # Before and after
    Change("L of rows without keys is 0", "index", PREPARE, "counts ? lse * std::numbers::log2e_v<float> : infinity", 
           "counts ? lse * std::numbers::log2e_v<float> : 0.f"),
    Change("the gradient of L is forgotten", "index", PREPARE, "      sum -= hw::load_global(", "      sum -= 0.f * hw::load_global("),
    Change("the sums are not cleared", "index", PREPARE, "  if (args.dq_sums == nullptr) return;\n", "  return;\n"),
    Change("the sums' second half is read for the first", "index", SUMS, "4 * (quad * hw::warpgroup_size + thread)",
           "4 * (quad / 2 * hw::warpgroup_size + thread)"),
    Change("statistics made before the grid ahead has ended", "wait", PREPARE,
           "  hw::wait_for_prior_grid();\n  const RowBlock block = RowBlock::of(args.row_blocks, args.q_heads);\n  prepare_statistics",
           "  const RowBlock block = RowBlock::of(args.row_blocks, args.q_heads);\n  prepare_statistics"),
    Change("queries that see no key are not left out", "index", PLAN,
           "length - other - limit, 0, length)", "length - other - limit, 0, std::int64_t{0})"),
    # dQ by a kernel of its own
    Change("queries: K released before its product is waited for", "release", QUERIES,
           "  hw::wgmma_wait<1>();\n  tile::release_slot(shared.k_ring, at);\n",
           "  tile::release_slot(shared.k_ring, at);\n  hw::wgmma_wait<1>();\n"),
    Change("queries: V released before its product is waited for", "release", QUERIES,
           "    hw::wgmma_wait<0>();\n    tile::release_slot(shared.v_ring, state.v_at());\n",
           "    tile::release_slot(shared.v_ring, state.v_at());\n    hw::wgmma_wait<0>();\n"),
    Change("queries: a row's first key is hidden", "index", QUERIES, "key < state.key_begin[i]", "key <= state.key_begin[i]"),
    Change("queries: no wait for the next K", "wait", QUERIES,
           "    tile::wait_full(shared.k_ring, state.k_at());\n  }\n", "  }\n"),
    # Roles
    Change("roles: P read before it is there", "wait", ROLES, "  shared.p_ring.wait_filled(at);\n", "", 192),
    Change("roles: Q released before dK is waited for", "release", ROLES,
           "  hw::wgmma_wait<1>();\n  release_role_slot(shared.q_ring, at);\n",
           "  release_role_slot(shared.q_ring, at);\n  hw::wgmma_wait<1>();\n", 192),
    Change("roles: dO released before dV is waited for", "release", ROLES,
           "  hw::wgmma_wait<1>();\n  release_role_slot(shared.dout_ring, at);\n",
           "  release_role_slot(shared.dout_ring, at);\n  hw::wgmma_wait<1>();\n", 192),
    Change("roles: the role of dK never frees P", "arrival", ROLES, "  shared.p_ring.release(at);\n", "", 192),
    Change("roles: one role's release frees Q", "arrival", ROLES, "shared.q_ring.init(consumer_warps);",
           "shared.q_ring.init(warps);", 192),
]
