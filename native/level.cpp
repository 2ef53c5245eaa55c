// All kernels of one level; compiled once for each, with PLAIT_LEVEL and the flags of that level.
#include "attention.hpp"
#include "attention_fma.hpp"
#include "convolution.hpp"
#include "delta.hpp"
#include "joins.hpp"
#include "kernels.hpp"
#include "linear.hpp"
#include "rows.hpp"
#include "sample.hpp"
#include "stored.hpp"
#include "tempered.hpp"

#define PLAIT_TEXT_(x) #x
#define PLAIT_TEXT(x) PLAIT_TEXT_(x)
#define PLAIT_JOIN_(a, b) a##b
#define PLAIT_JOIN(a, b) PLAIT_JOIN_(a, b)

namespace plait {

extern const Kernels PLAIT_JOIN(PLAIT_LEVEL, _kernels);
const Kernels PLAIT_JOIN(PLAIT_LEVEL, _kernels) = {
    PLAIT_TEXT(PLAIT_LEVEL), PLAIT_LEVEL::linear_f32, PLAIT_LEVEL::linear_f16, PLAIT_LEVEL::linear_bf16,
    PLAIT_LEVEL::attention,  PLAIT_LEVEL::store_rows, PLAIT_LEVEL::rms_norm,   PLAIT_LEVEL::heads,
    PLAIT_LEVEL::gated,
    PLAIT_LEVEL::delta,      PLAIT_LEVEL::convolution, PLAIT_LEVEL::gate_heads, PLAIT_LEVEL::join_rows, PLAIT_LEVEL::softcap,
    PLAIT_LEVEL::peak,       PLAIT_LEVEL::sum_exp,    PLAIT_LEVEL::maxima,
    PLAIT_LEVEL::masses,     PLAIT_LEVEL::bucket_masses, PLAIT_LEVEL::between,
};

}  // namespace plait
