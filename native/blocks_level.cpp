// Products with blocks, a few rows at a time; compiled once for each level that has instructions of its own for them.
#include "blocks_few.hpp"

#define PLAIT_JOIN_(a, b) a##b
#define PLAIT_JOIN(a, b) PLAIT_JOIN_(a, b)

namespace plait {

void PLAIT_JOIN(blocks_, PLAIT_LEVEL)(const BlockProduct& p) { PLAIT_LEVEL::blocks_few(p); }

}  // namespace plait
