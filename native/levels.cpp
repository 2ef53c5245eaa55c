// Which levels this machine can run.
#include <stdexcept>

#include "module.hpp"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace plait {

namespace {

// The kernel lets a process use matrix tiles only after it has asked for them.
bool may_use_tiles() {
#if defined(PLAIT_HAS_AMX) && defined(__linux__)
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
    if (!__builtin_cpu_supports("avx512f")) return false;
    unsigned a = 7, b = 0, c = 0, d = 0;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    bool there = (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1);  // AMX-BF16, AMX-TILE, AMX-INT8
    return there && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
#else
    return false;
#endif
}

#if defined(PLAIT_HAS_AVX512BF16)
// What serves at a level beside the products: attention of its own, the rest is that of avx512.
Kernels with_attention(const char* name, void (*attention)(const Attention&)) {
    Kernels kernels = avx512_kernels;
    kernels.name = name;
    kernels.attention = attention;
    return kernels;
}
const Kernels& avx512bf16_kernels() {
    static const Kernels made = with_attention("avx512bf16", attention_avx512bf16);
    return made;
}
#if defined(PLAIT_HAS_AMX)
const Kernels& amx_kernels() {
    static const Kernels made = with_attention("amx", attention_amx);
    return made;
}
#endif
#endif

#if defined(PLAIT_HAS_X86_LEVELS)
// A bit of what the processor says of its further vector instructions.
bool further(int bit) {
    unsigned a = 7, b = 0, c = 1, d = 0;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return a >> bit & 1;
}
#endif

bool has_bf16_products() {
#if defined(PLAIT_HAS_AVX512BF16)
    return __builtin_cpu_supports("avx512f") && further(5);
#else
    return false;
#endif
}

}  // namespace

bool asks_ahead() {
#if defined(PLAIT_HAS_X86_LEVELS)
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

std::vector<Level> levels() {
    std::vector<Level> found;
    auto plain = [&](const Kernels& k, BlockKernel blocks) {
        found.push_back({k.name, &k, k.linear_bf16, k.name, blocks, k.name});
    };
    plain(portable_kernels, blocks_portable);
#if defined(PLAIT_HAS_X86_LEVELS)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        plain(avx2_kernels, blocks_avx2);
#if defined(PLAIT_HAS_AVXVNNI)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") && further(4))
        found.push_back({"avxvnni", &avx2_kernels, avx2_kernels.linear_bf16, "avx2", blocks_avxvnni, "avxvnni"});
#endif
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
        plain(avx512_kernels, blocks_avx512);
#if defined(PLAIT_HAS_AVX512VNNI)
        if (__builtin_cpu_supports("avx512vnni"))
            found.push_back({"avx512vnni", &avx512_kernels, avx512_kernels.linear_bf16, "avx512", blocks_avx512vnni,
                             "avx512vnni"});
#endif
#if defined(PLAIT_HAS_AVX512BF16)
        if (has_bf16_products())
            found.push_back({"avx512bf16", &avx512bf16_kernels(), linear_bf16_avx512bf16, "avx512bf16", blocks_avx512vnni,
                             "avx512vnni"});
#endif
#if defined(PLAIT_HAS_AMX)
        if (has_bf16_products() && may_use_tiles())
            found.push_back({"amx", &amx_kernels(), linear_bf16_amx, "amx", blocks_amx, "amx"});
#endif
    }
#endif
    return found;
}

Native::Native(const std::string& name) {
    for (const Level& found : levels())
        if (found.name == name) {
            level = found;
            return;
        }
    throw std::invalid_argument("this machine has no level " + name);
}

}  // namespace plait
