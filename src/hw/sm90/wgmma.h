// The warpgroup matrix unit.
//
// PTX wants every accumulator as an operand of its own, so each n needs its own operand list. The lists are
// built by doubling (ACCUMULATORS_*) and by appending four names at a time (NAMES_*); one line per n then
// instantiates both forms.
#pragma once

#include <type_traits>

#include "hw/hw.h"

namespace tandem::hw {

TANDEM_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
TANDEM_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }

template <int pending>
TANDEM_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
}

TANDEM_DEVICE void compute_before_wait(float value, Barrier& witness) {
  // No arithmetic results in this NaN.
  asm volatile(
      "{\n"
      ".reg .pred never;\n"
      ".reg .b32 bits;\n"
      "mov.b32 bits, %0;\n"
      "setp.eq.s32 never, bits, 0x7f800001;\n"
      "@never st.shared.f32 [%1], %0;\n"
      "}\n" ::"f"(value),
      "r"(shared_address(&witness))
      : "memory");
}

/// K and the types, as they stand in the instruction's name; "C" pastes them.
template <Operand operand>
struct WgmmaTypes;
template <>
struct WgmmaTypes<Operand::bf16> {
  static constexpr char ptx[] = "k16.f32.bf16.bf16";
};
template <>
struct WgmmaTypes<Operand::fp16> {
  static constexpr char ptx[] = "k16.f32.f16.f16";
};
template <>
struct WgmmaTypes<Operand::e4m3> {
  static constexpr char ptx[] = "k32.f32.e4m3.e4m3";
};

/// The last operands: trans-a and trans-b, or trans-b alone where A is in registers.
template <Major... majors>
struct WgmmaMajors;
template <Major b>
struct WgmmaMajors<b> {
  static constexpr char ptx[] = {',', ' ', '0' + static_cast<int>(b), 0};
};
template <Major a, Major b>
struct WgmmaMajors<a, b> {
  static constexpr char ptx[] = {',', ' ', '0' + static_cast<int>(a), ',', ' ', '0' + static_cast<int>(b), 0};
};
/// 8-bit types have none.
struct NoWgmmaMajors {
  static constexpr char ptx[] = "";
};
template <Operand operand, Major... majors>
using WgmmaTail = std::conditional_t<is_16_bit(operand), WgmmaMajors<majors...>, NoWgmmaMajors>;

/// The instruction for one n; specialised below for every n that kernels use.
template <int n>
struct Wgmma;

#define TANDEM_ACCUMULATORS_4(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define TANDEM_ACCUMULATORS_8(c, d, i) TANDEM_ACCUMULATORS_4(c, d, i), TANDEM_ACCUMULATORS_4(c, d, i + 4)
#define TANDEM_ACCUMULATORS_16(c, d, i) TANDEM_ACCUMULATORS_8(c, d, i), TANDEM_ACCUMULATORS_8(c, d, i + 8)
#define TANDEM_ACCUMULATORS_32(c, d, i) TANDEM_ACCUMULATORS_16(c, d, i), TANDEM_ACCUMULATORS_16(c, d, i + 16)
#define TANDEM_ACCUMULATORS_64(c, d, i) TANDEM_ACCUMULATORS_32(c, d, i), TANDEM_ACCUMULATORS_32(c, d, i + 32)
#define TANDEM_ACCUMULATORS_128(c, d, i) TANDEM_ACCUMULATORS_64(c, d, i), TANDEM_ACCUMULATORS_64(c, d, i + 64)

#define TANDEM_NAMES_4 "%0, %1, %2, %3"
#define TANDEM_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TANDEM_NAMES_16 TANDEM_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TANDEM_NAMES_24 TANDEM_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TANDEM_NAMES_32 TANDEM_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TANDEM_NAMES_36 TANDEM_NAMES_32 ", %32, %33, %34, %35"
#define TANDEM_NAMES_40 TANDEM_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TANDEM_NAMES_48 TANDEM_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TANDEM_NAMES_56 TANDEM_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TANDEM_NAMES_64 TANDEM_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TANDEM_NAMES_68 TANDEM_NAMES_64 ", %64, %65, %66, %67"
#define TANDEM_NAMES_72 TANDEM_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TANDEM_NAMES_80 TANDEM_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TANDEM_NAMES_88 TANDEM_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TANDEM_NAMES_96 TANDEM_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TANDEM_NAMES_104 TANDEM_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define TANDEM_NAMES_112 TANDEM_NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define TANDEM_NAMES_120 TANDEM_NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define TANDEM_NAMES_128 TANDEM_NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"

// The lists' c is how a register is taken: "+f" as a float, "+r" as an integer. Operands 0 ... COUNT - 1 are
// the accumulators; I0 ... I7 name the inputs behind them, as PTX needs them
// spelled. The predicate is scale-d: whether D is added. The two ones are scale-a and scale-b (no negation),
// then come trans-a, trans-b.
#define TANDEM_LIST_4(c, d) TANDEM_ACCUMULATORS_4(c, d, 0)
#define TANDEM_LIST_8(c, d) TANDEM_ACCUMULATORS_8(c, d, 0)
#define TANDEM_LIST_16(c, d) TANDEM_ACCUMULATORS_16(c, d, 0)
#define TANDEM_LIST_24(c, d) TANDEM_ACCUMULATORS_16(c, d, 0), TANDEM_ACCUMULATORS_8(c, d, 16)
#define TANDEM_LIST_32(c, d) TANDEM_ACCUMULATORS_32(c, d, 0)
#define TANDEM_LIST_36(c, d) TANDEM_ACCUMULATORS_32(c, d, 0), TANDEM_ACCUMULATORS_4(c, d, 32)
#define TANDEM_LIST_40(c, d) TANDEM_ACCUMULATORS_32(c, d, 0), TANDEM_ACCUMULATORS_8(c, d, 32)
#define TANDEM_LIST_48(c, d) TANDEM_ACCUMULATORS_32(c, d, 0), TANDEM_ACCUMULATORS_16(c, d, 32)
#define TANDEM_LIST_56(c, d) \
  TANDEM_ACCUMULATORS_32(c, d, 0), TANDEM_ACCUMULATORS_16(c, d, 32), TANDEM_ACCUMULATORS_8(c, d, 48)
#define TANDEM_LIST_64(c, d) TANDEM_ACCUMULATORS_64(c, d, 0)
#define TANDEM_LIST_68(c, d) TANDEM_ACCUMULATORS_64(c, d, 0), TANDEM_ACCUMULATORS_4(c, d, 64)
#define TANDEM_LIST_72(c, d) TANDEM_ACCUMULATORS_64(c, d, 0), TANDEM_ACCUMULATORS_8(c, d, 64)
#define TANDEM_LIST_80(c, d) TANDEM_ACCUMULATORS_64(c, d, 0), TANDEM_ACCUMULATORS_16(c, d, 64)
#define TANDEM_LIST_88(c, d) \
  TANDEM_ACCUMULATORS_64(c, d, 0), TANDEM_ACCUMULATORS_16(c, d, 64), TANDEM_ACCUMULATORS_8(c, d, 80)
#define TANDEM_LIST_96(c, d) TANDEM_ACCUMULATORS_64(c, d, 0), TANDEM_ACCUMULATORS_32(c, d, 64)
#define TANDEM_LIST_112(c, d) \
  TANDEM_ACCUMULATORS_64(c, d, 0), TANDEM_ACCUMULATORS_32(c, d, 64), TANDEM_ACCUMULATORS_16(c, d, 96)
#define TANDEM_LIST_128(c, d) TANDEM_ACCUMULATORS_128(c, d, 0)

#define TANDEM_WGMMA(N, COUNT, I0, I1, I2, I3, I4, I5, I6, I7)                                               \
  template <>                                                                                                \
  struct Wgmma<N> {                                                                                          \
    template <Operand operand, Major a_major, Major b_major>                                                 \
    TANDEM_DEVICE static void ss(float (&d)[N / 2], std::uint64_t a, std::uint64_t b, int add) {             \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " I2                                                    \
                   ", 0;\n"                                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #N I3 " {" TANDEM_NAMES_##COUNT                       \
                   "}, " I0 ", " I1 ", p, 1, 1" I4 ";\n}\n"                                                  \
                   : TANDEM_LIST_##COUNT("+f", d)                                                            \
                   : "l"(a), "l"(b), "r"(add), "C"(WgmmaTypes<operand>::ptx),                                \
                     "C"(WgmmaTail<operand, a_major, b_major>::ptx));                                        \
    }                                                                                                        \
    template <Operand operand, Major b_major>                                                                \
    TANDEM_DEVICE static void rs(float (&d)[N / 2], const std::uint32_t (&a)[4], std::uint64_t b, int add) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " I5                                                    \
                   ", 0;\n"                                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #N I6 " {" TANDEM_NAMES_##COUNT                       \
                   "}, {" I0 ", " I1 ", " I2 ", " I3 "}, " I4 ", p, 1, 1" I7 ";\n}\n"                        \
                   : TANDEM_LIST_##COUNT("+f", d)                                                            \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),                           \
                     "C"(WgmmaTypes<operand>::ptx), "C"(WgmmaTail<operand, b_major>::ptx));                  \
    }                                                                                                        \
  };

TANDEM_WGMMA(8, 4, "%4", "%5", "%6", "%7", "%8", "%9", "%10", "%11")
TANDEM_WGMMA(16, 8, "%8", "%9", "%10", "%11", "%12", "%13", "%14", "%15")
TANDEM_WGMMA(32, 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22", "%23")
TANDEM_WGMMA(48, 24, "%24", "%25", "%26", "%27", "%28", "%29", "%30", "%31")
TANDEM_WGMMA(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", "%39")
TANDEM_WGMMA(72, 36, "%36", "%37", "%38", "%39", "%40", "%41", "%42", "%43")
TANDEM_WGMMA(80, 40, "%40", "%41", "%42", "%43", "%44", "%45", "%46", "%47")
TANDEM_WGMMA(96, 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54", "%55")
TANDEM_WGMMA(112, 56, "%56", "%57", "%58", "%59", "%60", "%61", "%62", "%63")
TANDEM_WGMMA(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70", "%71")
TANDEM_WGMMA(136, 68, "%68", "%69", "%70", "%71", "%72", "%73", "%74", "%75")
TANDEM_WGMMA(144, 72, "%72", "%73", "%74", "%75", "%76", "%77", "%78", "%79")
TANDEM_WGMMA(160, 80, "%80", "%81", "%82", "%83", "%84", "%85", "%86", "%87")
TANDEM_WGMMA(176, 88, "%88", "%89", "%90", "%91", "%92", "%93", "%94", "%95")
TANDEM_WGMMA(192, 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102", "%103")
TANDEM_WGMMA(224, 112, "%112", "%113", "%114", "%115", "%116", "%117", "%118", "%119")
TANDEM_WGMMA(256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", "%135")

#undef TANDEM_WGMMA

/// The same of int8: no negation, no majors.
template <int n>
struct IntegerWgmma;

#define TANDEM_WGMMA_INT8(N, COUNT, I0, I1, I2)                                                         \
  template <>                                                                                           \
  struct IntegerWgmma<N> {                                                                              \
    TANDEM_DEVICE static void ss(std::int32_t (&d)[N / 2], std::uint64_t a, std::uint64_t b, int add) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " I2                                               \
                   ", 0;\n"                                                                             \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" TANDEM_NAMES_##COUNT        \
                   "}, " I0 ", " I1 ", p;\n}\n"                                                         \
                   : TANDEM_LIST_##COUNT("+r", d)                                                       \
                   : "l"(a), "l"(b), "r"(add));                                                         \
    }                                                                                                   \
  };

TANDEM_WGMMA_INT8(8, 4, "%4", "%5", "%6")
TANDEM_WGMMA_INT8(128, 64, "%64", "%65", "%66")

#undef TANDEM_WGMMA_INT8

template <int n>
TANDEM_DEVICE void wgmma_ss_fp16(std::uint32_t (&accumulators)[n / 4], MatrixDescriptor a, MatrixDescriptor b,
                                 Accumulate accumulate) {
  static_assert(n == 128);
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f16.e4m3.e4m3 {" TANDEM_NAMES_32 "}, %32, %33, p, 1, 1;\n}\n"
      : TANDEM_LIST_32("+r", accumulators)
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(accumulate)));
}

template <Operand operand, int n, Major b_major, Major a_major>
TANDEM_DEVICE void wgmma_ss(float (&accumulators)[n / 2], MatrixDescriptor a, MatrixDescriptor b,
                            Accumulate accumulate) {
  static_assert(is_16_bit(operand) || (a_major == Major::k && b_major == Major::k));
  if constexpr (operand == Operand::int8) {
    IntegerWgmma<n>::ss(reinterpret_cast<std::int32_t(&)[n / 2]>(accumulators), a.bits, b.bits,
                        static_cast<int>(accumulate));
  } else {
    Wgmma<n>::template ss<operand, a_major, b_major>(accumulators, a.bits, b.bits,
                                                     static_cast<int>(accumulate));
  }
}

template <Operand operand, int n, Major b_major>
TANDEM_DEVICE void wgmma_rs(float (&accumulators)[n / 2], const std::uint32_t (&a)[4], MatrixDescriptor b,
                            Accumulate accumulate) {
  static_assert(is_16_bit(operand) || (operand == Operand::e4m3 && b_major == Major::k));
  Wgmma<n>::template rs<operand, b_major>(accumulators, a, b.bits, static_cast<int>(accumulate));
}

}  // namespace tandem::hw
