// Weights are packed by threads of their own, a few panels at a time, while who asked for it does other things.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "blocks.hpp"

namespace plait {

class Packer {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<BlockRows> pieces;
    std::vector<std::thread> workers;
    long threads, waiting = 0, busy = 0;  // bytes of pieces nobody has taken; threads that pack
    bool ending = false;

    void take(std::unique_lock<std::mutex>& lock);
    void work();

  public:
    explicit Packer(long threads) : threads(threads) {}
    Packer(const Packer&) = delete;
    Packer& operator=(const Packer&) = delete;
    // What was not begun is not packed.
    ~Packer();

    // Rows and panels stay where they are until `wait` returns. Where very much waits to be packed, the caller does.
    void add(const BlockRows& rows);
    // All that was added is packed.
    void wait();
};

}  // namespace plait
