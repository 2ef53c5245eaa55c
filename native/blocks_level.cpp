// Products with blocks; compiled once for each level that has instructions of its own for them.
#include "blocks_few.hpp"
#include "blocks_many.hpp"

#define PLAIT_JOIN_(a, b) a##b
#define PLAIT_JOIN(a, b) PLAIT_JOIN_(a, b)

namespace plait {

void PLAIT_JOIN(blocks_, PLAIT_LEVEL)(const BlockProduct& p) {
#if defined(PLAIT_X86_VECTORS)
    if (p.rows >= PLAIT_LEVEL::many(p.planes) && !p.own_rows) return PLAIT_LEVEL::blocks_many(p);
#endif
    PLAIT_LEVEL::blocks_few(p);
}

}  // namespace plait
