// The search runs in a worker, which browsers refuse to a page that was opened as a file. There, a hidden frame runs the same program.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.program = new Promise(resolve => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow
          inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inside.document.createElement("script")
          script.src = url
          script.addEventListener("load", () => resolve(inside))
          inside.document.body.append(script)
        }, { once: true })
      })
      document.documentElement.append(frame)
    }

    postMessage(data) {
      this.program.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
