#include "image.hpp"

#include <tuple>

#include "bytes.hpp"

namespace mock {
namespace {

constexpr uint32_t FATBIN_MAGIC = 0xba55ed50;
enum : uint16_t { PTX = 1, ELF = 2 };
// Flags of an entry: compressed with LZ4, and with Zstandard.
constexpr uint64_t COMPRESSED = 0x2000 | 0x8000;

// The newest PTX version, 10 · major + minor, that a driver compiles.
int newest_ptx(int driver_version) {
    struct Release {
        int driver, ptx;
    };
    static const Release RELEASES[] = {{13020, 92}, {13010, 91}, {13000, 90}, {12090, 88}, {12080, 87}, {12070, 86},
                                       {12050, 85}, {12040, 84}, {12030, 83}, {12020, 82}, {12010, 81}, {12000, 80},
                                       {11080, 78}, {11070, 77}, {11060, 76}, {11050, 75}, {11040, 74}, {11030, 73},
                                       {11020, 72}, {11010, 71}, {11000, 70}};
    for (const Release &release : RELEASES)
        if (driver_version >= release.driver)
            return release.ptx;
    return 0;
}

std::string name_of(const Image &image) {
    return std::string(image.ptx_version ? "compute_" : "sm_") + std::to_string(image.architecture) +
           (image.specific ? "a" : "");
}

// Whether machine code, or PTX when it is compiled, runs on the card.
bool runs(const Image &image, const Card &card) {
    const int architecture = 10 * card.major + card.minor;
    if (image.specific)
        return image.architecture == architecture;
    if (image.ptx_version)
        return image.architecture <= architecture;
    return image.architecture / 10 == card.major && image.architecture <= architecture;
}

// Whether the driver prefers `image`: machine code before PTX, then the nearer architecture, then the specific one.
bool better(const Image &image, const Image &than) {
    const auto rank = [](const Image &of) {
        return std::make_tuple(of.ptx_version == 0, of.architecture, of.specific);
    };
    return rank(image) > rank(than);
}

std::vector<Image> read_fatbin(const char *data) {
    const Bytes header{data, 16};
    const Bytes file{data, header.number<uint16_t>(6) + header.number<uint64_t>(8)};
    std::vector<Image> images;
    for (uint64_t at = header.number<uint16_t>(6); at < file.size;) {
        const uint16_t kind = file.number<uint16_t>(at);
        const uint64_t header_bytes = file.number<uint32_t>(at + 4), payload_bytes = file.number<uint64_t>(at + 8);
        if (header_bytes < 64)
            refuse(CUDA_ERROR_INVALID_IMAGE, "an entry of the fatbin has a header of %llu bytes, less than 64",
                   static_cast<unsigned long long>(header_bytes));
        const uint64_t flags = file.number<uint64_t>(at + 40);
        const Bytes payload = file.part(at + header_bytes, payload_bytes);
        if (flags & COMPRESSED)
            refuse(CUDA_ERROR_INVALID_IMAGE,
                   "the fatbin is compressed, which the mock driver does not read: build it with nvcc --no-compress");
        if (kind == ELF)
            images.push_back(read_cubin(payload.data, payload.size));
        else if (kind == PTX)
            images.push_back(read_ptx(payload.text(0)));
        at += header_bytes + payload_bytes;
    }
    return images;
}

} // namespace

Image choose_image(const void *data) {
    const char *const begin = static_cast<const char *>(data);
    std::vector<Image> images;
    if (is_ptx(begin)) {
        images.push_back(read_ptx(begin));
    } else {
        uint32_t magic;
        memcpy(&magic, begin, sizeof magic);
        if (magic == FATBIN_MAGIC)
            images = read_fatbin(begin);
        else if (is_cubin(begin))
            images.push_back(read_cubin(begin, cubin_bytes(begin)));
        else
            refuse(CUDA_ERROR_INVALID_IMAGE, "the image is no fatbin, cubin or PTX");
    }
    const Configuration &configuration = driver().configuration;
    const Image *best = nullptr;
    std::string has;
    for (const Image &image : images) {
        has += (has.empty() ? "" : ", ") + name_of(image);
        if (runs(image, *configuration.card) && (!best || better(image, *best)))
            best = &image;
    }
    const Card &card = *configuration.card;
    if (!best)
        refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "nothing in the image runs on compute capability %d.%d: it has %s",
               card.major, card.minor, has.empty() ? "nothing" : has.c_str());
    if (best->ptx_version > newest_ptx(configuration.driver_version))
        refuse(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "driver %d compiles PTX up to %.1f, not %.1f",
               configuration.driver_version, newest_ptx(configuration.driver_version) / 10.0, best->ptx_version / 10.0);
    if (best->toolkit / 10 > configuration.driver_version / 1000)
        refuse(CUDA_ERROR_INVALID_IMAGE, "driver %d does not load machine code of CUDA %.1f",
               configuration.driver_version, best->toolkit / 10.0);
    return *best;
}

} // namespace mock
