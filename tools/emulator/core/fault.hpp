// Faults of the machine while a kernel runs: accesses not made through ptx::, and stacks that overflow.
#pragma once

namespace emu {

class Worker;

// While it lives, a fault on this thread of the machine is the worker's.
class FaultScope {
  public:
    explicit FaultScope(Worker &worker);
    FaultScope(const FaultScope &) = delete;
    FaultScope &operator=(const FaultScope &) = delete;
    ~FaultScope();

    // From now on it is this one's, of the same cluster.
    static void move(Worker &worker);
};

} // namespace emu
