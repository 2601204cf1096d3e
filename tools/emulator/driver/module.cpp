// Modules and their functions.

#include <fstream>
#include <iterator>

#include "capture.hpp"
#include "driver.hpp"
#include "work.hpp"

extern "C" const char emu_kernels[];

using namespace mock;

namespace {

CUmodule load(Context &context, const void *image) {
    if (!image)
        refuse(CUDA_ERROR_INVALID_VALUE, "the image is null");
    refuse_unsafe();
    auto module = std::make_unique<Module>(Module{&context, choose_image(image)});
    const CUmodule handle = module.get();
    context.modules[handle] = std::move(module);
    return handle;
}

Module &module_of(Context &context, CUmodule handle) {
    const auto found = context.modules.find(handle);
    if (found == context.modules.end())
        refuse(CUDA_ERROR_INVALID_HANDLE, "%p is no module of the current context", static_cast<void *>(handle));
    return *found->second;
}

std::shared_ptr<Function> make_function(Context &context, Module &module, const char *name) {
    const void *const table = driver().kernels ? driver().kernels : emu_kernels;
    const EmuKernel *const kernel = emu_find(table, name);
    for (const ImageKernel &description : module.image.kernels) {
        if (description.name != name)
            continue;
        if (!kernel)
            refuse(CUDA_ERROR_NOT_SUPPORTED, "kernel %s is in the image, but not among the emulated kernels", name);
        auto function = std::make_shared<Function>(Function{&context, &module, description, kernel, 0});
        // Emulated kernels have one parameter.
        const uint32_t bytes = *emu_parameter_bytes(kernel);
        if (bytes != description.parameter_bytes)
            refuse(CUDA_ERROR_INVALID_IMAGE,
                   "kernel %s has parameters of %u bytes in the image and of %u when emulated", name,
                   description.parameter_bytes, bytes);
        function->max_dynamic_shared = std::max(0, SHARED_DEFAULT - description.shared_bytes);
        return function;
    }
    refuse(CUDA_ERROR_NOT_FOUND, "kernel %s is not in the image%s", name,
           kernel ? ", though among the emulated kernels" : "");
}

} // namespace

MOCK_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    return call_in_context(__func__, [&](Context &context) {
        output(module) = load(context, image);
        return CUDA_SUCCESS;
    });
}

// The options are those of the compiler of PTX, which the mock driver has not.
MOCK_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned, int *, void **) {
    return cuModuleLoadData(module, image);
}

MOCK_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return cuModuleLoadData(module, image);
}

MOCK_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path) {
    return call_in_context(__func__, [&](Context &context) {
        output(module);
        output(path);
        std::ifstream file(path, std::ios::binary);
        if (!file)
            refuse(CUDA_ERROR_FILE_NOT_FOUND, "%s cannot be read", path);
        std::string image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        *module = load(context, image.c_str());
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuModuleUnload(CUmodule handle) {
    return call_in_context(__func__, [&](Context &context) {
        Module &module = module_of(context, handle);
        refuse_unsafe();
        finish(context);
        for (auto function = context.functions.begin(); function != context.functions.end();)
            function = function->second->module == &module ? context.functions.erase(function) : std::next(function);
        context.modules.erase(handle);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name) {
    return call_in_context(__func__, [&](Context &context) {
        output(function);
        Module &module = module_of(context, handle);
        for (const auto &[known, made] : context.functions) {
            if (made->module == &module && made->description.name == name) {
                *function = known;
                return CUDA_SUCCESS;
            }
        }
        // A driver that loads kernels when they are first asked for does it now.
        refuse_unsafe();
        std::shared_ptr<Function> made = make_function(context, module, name);
        *function = made.get();
        context.functions[*function] = std::move(made);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *, size_t *, CUmodule, const char *name) {
    return call_in_context(__func__, [&](Context &) -> CUresult {
        refuse(CUDA_ERROR_NOT_SUPPORTED, "variables of modules, such as %s, are not supported", name);
    });
}
