#include "configuration.hpp"

#include <algorithm>
#include <errno.h>
#include <stdlib.h>
#include <vector>

namespace mock {
namespace {

// A whole number, nothing before or after it.
bool read_number(const std::string &text, uint64_t &number) {
    if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos)
        return false;
    errno = 0;
    number = strtoull(text.c_str(), nullptr, 10);
    return errno == 0;
}

// As read_number, with K, M or G behind it for the powers of 1024.
bool read_bytes(std::string text, uint64_t &bytes) {
    int shift = 0;
    if (!text.empty()) {
        const size_t unit = std::string("KMG").find(text.back());
        if (unit != std::string::npos) {
            shift = 10 * (int(unit) + 1);
            text.pop_back();
        }
    }
    if (!read_number(text, bytes) || bytes > UINT64_MAX >> shift)
        return false;
    bytes <<= shift;
    return true;
}

// One of the names, as its place among them.
bool read_choice(const std::string &text, const std::vector<std::string> &names, int &place) {
    for (place = 0; place < int(names.size()); ++place)
        if (names[place] == text)
            return true;
    return false;
}

// Reads one value. Gives "", or what it should have been.
std::string read_word(const std::string &key, const std::string &value, Configuration &configuration) {
    uint64_t number = 0;
    int place = 0;
    EmuConfig &emulator = configuration.emulator;
    if (key == "devices") {
        if (!read_number(value, number) || number > 16)
            return "a number from 0 to 16";
        configuration.devices = int(number);
    } else if (key == "cc") {
        const size_t dot = value.find('.');
        uint64_t major = 0, minor = 0;
        const bool two = dot != std::string::npos && read_number(value.substr(0, dot), major) &&
                         read_number(value.substr(dot + 1), minor) && major < 100 && minor < 10;
        const Card *card = two ? card_of(int(major), int(minor)) : nullptr;
        if (!card)
            return std::string("one of ") + known_cards();
        configuration.card = card;
    } else if (key == "multiprocessors") {
        if (!read_number(value, number) || number > 1024)
            return "a number from 1 to 1024, or 0 for the card's";
        configuration.multiprocessors_instead = int(number);
    } else if (key == "memory") {
        if (!read_bytes(value, number) || number == 0)
            return "bytes, such as 512M or 4G";
        configuration.memory = number;
    } else if (key == "driver") {
        if (!read_number(value, number) || number < 11000 || number > 99990)
            return "a version as cuDriverGetVersion gives it, such as 12080 for 12.8";
        configuration.driver_version = int(number);
    } else if (key == "pools") {
        if (!read_choice(value, {"no", "yes"}, place))
            return "yes or no";
        configuration.pools = place == 1;
    } else if (key == "out-of-memory-at") {
        if (!read_number(value, number))
            return "the number of an allocation, from 1, or 0 for none";
        configuration.out_of_memory_at = number;
    } else if (key == "launch-fails-at") {
        if (!read_number(value, number))
            return "the number of a launch, from 1, or 0 for none";
        configuration.launch_fails_at = number;
    } else if (key == "launch-error") {
        if (!read_number(value, number) || number == 0 || number > 999)
            return "a CUresult, such as 719";
        configuration.launch_error = CUresult(number);
    } else if (key == "launch-lost-at") {
        if (!read_number(value, number))
            return "the number of a launch, from 1, or 0 for none";
        configuration.launch_lost_at = number;
    } else if (key == "streams") {
        if (!read_choice(value, {"lazy", "random"}, place))
            return "lazy or random";
        configuration.random_streams = place == 1;
    } else if (key == "schedule") {
        if (!read_choice(value, {"in-order", "reversed", "random", "pct"}, place))
            return "in-order, reversed, random or pct";
        emulator.schedule = EmuSchedule(place);
    } else if (key == "copies") {
        if (!read_choice(value, {"issue", "wait", "random"}, place))
            return "issue, wait or random";
        emulator.copies = EmuCopies(place);
    } else if (key == "sums") {
        if (!read_choice(value, {"nearest", "ampere", "hopper"}, place))
            return "nearest, ampere or hopper";
        emulator.sums = EmuSums(place);
    } else if (key == "seed") {
        if (!read_number(value, number))
            return "a number";
        emulator.seed = number;
    } else if (key == "workers") {
        if (!read_number(value, number) || number == 0 || number > 1024)
            return "a number from 1 to 1024";
        emulator.workers = uint32_t(number);
    } else if (key == "count") {
        if (!read_choice(value, {"no", "yes"}, place))
            return "yes or no";
        emulator.count = uint32_t(place);
    } else {
        return "devices, cc, multiprocessors, memory, driver, pools, out-of-memory-at, launch-fails-at, launch-error, "
               "launch-lost-at, streams, schedule, copies, sums, seed, workers or count before the =";
    }
    return "";
}

} // namespace

std::string read_configuration(const char *words, Configuration &configuration) {
    const std::string text = words;
    for (size_t begin = 0; begin < text.size();) {
        const size_t comma = std::min(text.find(',', begin), text.size());
        const std::string word = text.substr(begin, comma - begin);
        begin = comma + 1;
        const size_t equals = word.find('=');
        if (equals == std::string::npos)
            return "\"" + word + "\" is not of the form name=value";
        const std::string expected = read_word(word.substr(0, equals), word.substr(equals + 1), configuration);
        if (!expected.empty())
            return "\"" + word + "\" is not understood: expected " + expected;
    }
    return "";
}

} // namespace mock
