#include "packer.hpp"

#include <system_error>

namespace plait {

namespace {

// Bytes of panels a thread packs at a time, and those that may wait.
constexpr long PIECE = 1 << 22, MOST = 1 << 30;

long panels_of(const BlockRows& rows) { return (rows.out + PANEL - 1) / PANEL; }
long bytes_of(const BlockRows& rows) { return panels_of(rows) * panel_bytes(rows.form, rows.in); }

}  // namespace

void Packer::add(const BlockRows& rows) {
    long size = panel_bytes(rows.form, rows.in), many = PIECE > size ? PIECE / size : 1;
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return waiting < MOST; });
    for (long panel = 0; panel < panels_of(rows); panel += many) {
        BlockRows piece = rows;
        long left = rows.out - panel * PANEL;
        piece.rows += panel * PANEL * file_row_bytes(rows.form, rows.in);
        piece.out = left < many * PANEL ? left : many * PANEL;
        piece.first += panel * rows.step;
        pieces.push_back(piece);
        waiting += bytes_of(piece);
    }
    try {
        while (long(workers.size()) < threads) workers.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
        // The system gives no more threads: those there are do it, or this one.
        threads = long(workers.size());
    }
    changed.notify_all();
    while (workers.empty() && !pieces.empty()) take(lock);
}

// Packs the first piece; the lock is let go of meanwhile.
void Packer::take(std::unique_lock<std::mutex>& lock) {
    BlockRows piece = pieces.front();
    pieces.pop_front();
    waiting -= bytes_of(piece);
    ++busy;
    lock.unlock();
    pack_blocks(piece);
    lock.lock();
    --busy;
    changed.notify_all();
}

void Packer::wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return pieces.empty() && busy == 0; });
}

void Packer::work() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        changed.wait(lock, [&] { return ending || !pieces.empty(); });
        if (ending) return;
        take(lock);
    }
}

Packer::~Packer() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        ending = true;
    }
    changed.notify_all();
    for (std::thread& worker : workers) worker.join();
}

}  // namespace plait
