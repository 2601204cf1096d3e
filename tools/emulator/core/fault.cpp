#include "fault.hpp"

#include "worker.hpp"

#include <csignal>
#include <mutex>
#include <ucontext.h>

namespace emu {

namespace {

thread_local Worker *running = nullptr;

// Under a sanitizer, faults are the sanitizer's.
#if !defined(SETRANK_SANITIZED)

struct sigaction previous_segv, previous_bus;

void handle(int signal, siginfo_t *information, void *context) {
    Worker *worker = running;
    if (worker != nullptr && worker->in_fiber()) {
        worker->fault(information->si_addr, context);
        return;
    }
    const struct sigaction &previous = signal == SIGSEGV ? previous_segv : previous_bus;
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(signal, information, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(signal);
    } else {
        // The access faults again, with nobody to handle it.
        sigaction(signal, &previous, nullptr);
    }
}

void install() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action {};
        action.sa_sigaction = handle;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &action, &previous_segv);
        sigaction(SIGBUS, &action, &previous_bus);
    });
}

// A stack for the handler: the one that faults may have overflowed. Of threads that have one already, Rust's and ours.
class SignalStack {
  public:
    SignalStack() {
        stack_t now{};
        if (sigaltstack(nullptr, &now) == 0 && (now.ss_flags & SS_DISABLE) != 0) {
            memory.resize(BYTES);
            stack_t ours{};
            ours.ss_sp = memory.data();
            ours.ss_size = memory.size();
            sigaltstack(&ours, nullptr);
        }
    }
    ~SignalStack() {
        if (!memory.empty()) {
            stack_t none{};
            none.ss_flags = SS_DISABLE;
            sigaltstack(&none, nullptr);
        }
    }

  private:
    static constexpr size_t BYTES = 64 << 10;
    std::vector<unsigned char> memory;
};

#endif

} // namespace

FaultScope::FaultScope(Worker &worker) {
#if !defined(SETRANK_SANITIZED)
    install();
    static thread_local SignalStack stack;
#endif
    running = &worker;
}

void FaultScope::move(Worker &worker) { running = &worker; }

FaultScope::~FaultScope() { running = nullptr; }

// In the handler: the thread goes on in `give_up`, on a stack of its own.
void Worker::fault(const void *address, void *context) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    const uintptr_t stack = reinterpret_cast<uintptr_t>(stack_of(current->thread->number));
    const bool overflow = at - stack < STACK_BYTES;
    fault_text = overflow ? "the thread's stack overflows: it has 60 KiB for local variables"
                          : "access to memory that is not made through ptx::, or a jump to nowhere";
    auto &registers = static_cast<ucontext_t *>(context)->uc_mcontext.gregs;
    const uintptr_t top = reinterpret_cast<uintptr_t>(fault_stack + sizeof(fault_stack));
    registers[REG_RSP] = static_cast<greg_t>(top - sizeof(void *));
    registers[REG_RDI] = static_cast<greg_t>(reinterpret_cast<uintptr_t>(this));
    registers[REG_RIP] = static_cast<greg_t>(reinterpret_cast<uintptr_t>(&give_up));
}

void Worker::give_up(Worker *worker) {
    worker->record(ILLEGAL_ADDRESS, Site{worker->launch->kernel->name, 0}, worker->fault_text, worker->current->thread);
    worker->leave(*worker->current);
}

} // namespace emu
