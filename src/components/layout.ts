/** Call `look` now, and whenever an element scrolls or changes its size; returns what ends that. */
export function watchLayout(host: HTMLElement, look: () => void): () => void {
  look();
  host.addEventListener('scroll', look, { passive: true });
  const size = new ResizeObserver(look);
  size.observe(host);
  return () => {
    host.removeEventListener('scroll', look);
    size.disconnect();
  };
}
