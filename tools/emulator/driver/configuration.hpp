// What the mock driver is told to be. src/driver.rs documents the words.
#pragma once

#include <stdint.h>
#include <string>

#include "card.hpp"
#include "cuda.hpp"
#include "emulator.h"

namespace mock {

struct Configuration {
    int devices = 1;
    const Card *card = card_of(9, 0);
    // 0: the card's.
    int multiprocessors_instead = 0;
    // Bytes of each device.
    uint64_t memory = uint64_t(4) << 30;
    int driver_version = 13000;
    bool pools = true;
    // Which allocation, and which launch, fails, counted from 1 over all devices; 0: none.
    uint64_t out_of_memory_at = 0;
    uint64_t launch_fails_at = 0;
    CUresult launch_error = CUDA_ERROR_LAUNCH_FAILED;
    // Which launch does nothing without anyone being told.
    uint64_t launch_lost_at = 0;
    // Whether queued work runs at random times instead of as late as is legal.
    bool random_streams = false;
    EmuConfig emulator = {1, EMU_IN_ORDER, EMU_AT_WAIT, EMU_NEAREST, 1, 0, 0};

    int multiprocessors() const { return multiprocessors_instead ? multiprocessors_instead : card->multiprocessors; }
};

// Reads words such as "cc=8.9,memory=4G" over what `configuration` holds. Gives "", or what is wrong.
std::string read_configuration(const char *words, Configuration &configuration);

} // namespace mock
